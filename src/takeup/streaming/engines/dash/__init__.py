"""The dash engine: a real HTTP server, real players over real TCP, one bottleneck that all downloads share.

engine   plans and runs all videos of a cell, and estimates with standard errors
player   one player's download and playout
server   videos and HTTP/1.1
links    the bottleneck: paced in this process, or by the kernel between two network namespaces
"""
