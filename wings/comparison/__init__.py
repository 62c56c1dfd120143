"""Race any models on any targets (`gauntlet bench`), and compare two runs (`gauntlet compare`)."""
