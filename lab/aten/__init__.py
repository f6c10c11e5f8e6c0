"""ATen operations that were measured, one by one or in profiler traces, beside what the tables say of them."""
