"""The twin, the reference library and the device script."""
