"""The few operations that say where a job stands: rules about hangs look at no others."""
