"""Images over HTTP: the API of OpenAI's clients in front of the step engine, with LoRAs and ControlNets per request.

Path of a request. `access` checks origin, key and size; a route of `image_routes` validates the body against its
schema; `service` looks up the adapters the tenant may use and creates *jobs*, one per image; `admission` bounds running
and waiting jobs and refuses the rest; a *backend* (`backends/`) generates the images, in this process or in others.
Nothing below the backend depends on HTTP, and nothing above it on networks.
"""
