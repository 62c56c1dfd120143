"""The interleaved race and its statistics: entries and a plan become a table (`gauntlet.race.table.run_race`)."""
