from takeup.training.stragglers.watch.batches import Batches as Batches
from takeup.training.stragglers.watch.hook import watched_values as watched_values
