"""Tell a chat channel when a flow left silt behind."""

import json
import urllib.request


def tell(report, webhook):
    if not report.silted:
        return
    body = json.dumps({"text": f"{report.name}: {report.silted} records failed"}).encode()
    urllib.request.urlopen(urllib.request.Request(webhook, body, {"Content-Type": "application/json"}), timeout=10)
