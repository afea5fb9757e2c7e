from takeup.training.engines.pytorch.watch.batches import Batches as Batches
