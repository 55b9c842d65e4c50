"""The machine: instruction set, program format, binder, device memory and executors. Imports nothing from the compiler."""
