"""The fault campaign: `python -m tests.faults`, or `make faults`. A family of faults is a module with `campaign` and `LONG`."""
