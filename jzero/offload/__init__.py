"""Where state lies between steps, on the devices, in host memory or in files, and how it is made and updated there."""
