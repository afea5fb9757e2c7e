"""Images over HTTP: the API of OpenAI's clients in front of the step engine, with LoRAs and ControlNets per request.

Path of a request. A *route* parses it and validates it against its schema; the *service* looks up the adapters the
tenant may use and creates *jobs*, one per image; the *gate* (admission control) bounds running and waiting jobs and
refuses the rest; a *backend* generates the images, in this process or in others. Nothing below the backend depends on
HTTP, and nothing above it on networks.
"""
