"""Add-ons of the step loop: LoRAs and ControlNets of each request."""
