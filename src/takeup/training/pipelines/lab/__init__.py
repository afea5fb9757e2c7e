"""The laboratory: real ranks over Gloo, with artificially slow links and stages.

trials.py     trials and their outcomes; starts the program below, with a timeout
program.py    imports PyTorch once and forks the ranks of each trial: a small transformer with prescribed operation
              times, delayed messages that the planner does not know of, and the training loop of a rank
network.py    network namespaces for ranks with rate-limited veth links; needs the privileges to create them
"""
