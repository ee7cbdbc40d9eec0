"""tryout.py: import this Python's TensorFlow, list its GPUs, multiply and convolve on the first GPU or the CPU.

After each step, a line `tfdock:["STEP", "what was found"]` is printed between TensorFlow's own messages.
"""

import json
import sys


def say(step, found):
    sys.stdout.write("\ntfdock:" + json.dumps([step, str(found)]) + "\n")
    sys.stdout.flush()


def main():
    import tensorflow as tf

    say("import", "TensorFlow " + tf.__version__ + " of " + tf.__file__)
    gpus = tf.config.list_physical_devices("GPU")
    say("devices", str(len(gpus)) + " GPU(s)")
    where = "/GPU:0" if gpus else "/CPU:0"
    with tf.device(where):
        ones = tf.ones([256, 256])
        right = float(tf.reduce_sum(tf.matmul(ones, ones))) == 256.0**3
        say("matmul", ("right" if right else "wrong") + " on " + where)
        image, kernel = tf.ones([1, 32, 32, 8]), tf.ones([3, 3, 8, 8])
        right = float(tf.reduce_sum(tf.nn.conv2d(image, kernel, 1, "VALID"))) == 30.0 * 30 * 72 * 8
        say("convolution", ("right" if right else "wrong") + " on " + where)


main()
