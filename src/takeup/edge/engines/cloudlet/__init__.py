"""The cloudlet engine: devices that upload real bytes over shaped links, and a site that computes in real time.

plan        bytes and times by the clock of this machine, and the dispatch queue of the cores
links       child processes, and a rate for each device: paced by the device, or shaped between network namespaces
device      the program of a device, run as a separate process
core        the program of a core, run as a separate process
engine      real-time priorities, the event loop of the site, and the engine that combines these
"""
