"""Read the device requests of other systems' pods, one module for each system."""
