"""What authors of packages need: tests of the kinds that their packages bring."""
