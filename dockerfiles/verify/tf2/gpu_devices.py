"""The GPUs that TensorFlow uses. Without a GPU there is no exception: the list is empty, and the log says why."""

from probe import check


def probe(facts):
    import tensorflow as tf

    config = tf.config if hasattr(tf.config, "list_physical_devices") else tf.config.experimental
    devices = config.list_physical_devices("GPU")
    details = getattr(tf.config.experimental, "get_device_details", lambda _: {})
    found = [told(details(device) or {"device_name": device.name}) for device in devices]
    return check(bool(found), "a GPU", found, "TensorFlow found no GPU that it uses; its log says why")


def told(details):
    capability = ".".join(str(part) for part in details.get("compute_capability", ()))
    return {"name": details.get("device_name", ""), "capability": capability}
