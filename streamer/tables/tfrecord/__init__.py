"""TFRecord files, and the tf.train.Example messages in them."""
