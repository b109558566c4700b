"""The other actuator, in the application: a gate before the kernel's send buffer, without privileges."""
