"""Images of sandboxes: fetched by digest, unpacked, cached and collected; and the default image, built here.

The gVisor driver and `atoll`'s commands use `ImageStore` and `ensure_default_image`.
"""

from atoll.drivers.gvisor.images.store import Image, ImageStore
from atoll.drivers.gvisor.images.unpack import Limits

__all__ = ["Image", "ImageStore", "Limits"]
