from takeup.training.stragglers.watch.batches import Batches as Batches
