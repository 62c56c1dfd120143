"""The winner in browsers, on devices, and taught there. See docs/wings/devices.md."""
