"""Training as a service: jobs over gRPC, a registry of models with names that point, and daemons that follow them.

    client.py -> server.py -> jobs_servicer.py ---> jobs.py ------> running/ (supervisor, runners, a job's own process)
                           -> models_servicer.py -> registry.py --> gate.py (a process)
    text.py, files.py, identity.py, blobs.py and database.py stand below all of these

``reinet.trainer.Client`` is the public Python client (``trainer/``, ``client.py``).
"""
