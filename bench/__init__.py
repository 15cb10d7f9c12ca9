"""Every figure of the README, measured side by side in one run: `python -m bench`.

Peers (runsc, bubblewrap, Docker Engine) and Atoll take turns, so that drift of the machine hits all alike; the first
rounds are discarded. Atoll is a real `atoll serve` over HTTP. The client is `http.client` on one kept-alive connection
(`tests.client`): its 0.2 ms a call are in the figures. No part of the product imports this.
"""
