"""The ring: a real HTTP server, real players over real TCP, one bottleneck that all downloads share.

engine   plans and runs all videos of a cell; each player's download
server   videos and HTTP/1.1
links    the bottleneck, paced in this process
"""
