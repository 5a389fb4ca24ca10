"""What lies in a run's object store: complete, of this run, and nothing in it that a crash has left half."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trimtab.errors import MissingExtraError
from trimtab.operate.verdict import Verdict
from trimtab.store.run_directory import RunDirectory


def check_store(
    directory: RunDirectory, facts: Mapping[str, Any], resolved: Mapping[str, Any], verdict: Verdict
) -> None:
    """Sizes of all objects, hashes of the manifests; no checkpoint is downloaded. A store that is away is no fault."""
    url = resolved.get("checkpoint", {}).get("store")
    if url is None:
        return
    from trimtab.store.remote import Remote, StoreError, line_of

    try:
        remote = Remote(url)
        owner, contents = remote.owner(), remote.contents()
    except (StoreError, MissingExtraError) as error:
        verdict.note(url, f"was not looked at: {error}")
        return
    if owner is not None and owner["id"] != facts.get("id"):
        verdict.fault("store", url, f"is of run {owner['id']}, this is run {facts.get('id')}")
        return
    for name, fault in contents.faults.items():
        place, _, what = fault.partition(" ")
        verdict.fault("store", place, what, f"this copy will not be used; remove {url}/{name}")
    for name in contents.unfinished:
        verdict.note(
            f"{url}/{name}", "has no manifest: it is being uploaded, or was cut off; the next upload removes it"
        )
    steps = sorted(line_of(contents.uploads))
    if not steps:
        verdict.note(url, "has no checkpoint of this run")
    elif "store" not in verdict.findings:
        verdict.good("store", f"{url}: steps {', '.join(map(str, steps))}, all objects there in their sizes")
