"""Images over HTTP: the API of OpenAI's clients in front of the step engine, with LoRAs and ControlNets per request.

How a request travels. A *route* reads it and checks it against its schema; the *service* looks up the adapters the
tenant may use and turns it into *jobs*, one for every image; the *gate* lets so many of them run and so many wait, and
sends the rest away; a *backend* makes the pictures, in this process or in others. Nothing below the backend knows about
HTTP, and nothing above it about networks.
"""
