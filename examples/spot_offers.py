"""What may be promised: a menu by hand, what is left of it after a sale, and the best promises for a job."""

from __future__ import annotations

from takeup.cluster.quota.allocator import Menu, SpotPromise

# 100 GPUs; demand stays under 70 for one hour and under 85 for four, both with 90 %; see docs/concepts/cluster.md.
menu = Menu("A100", hours=(1.0, 4.0), probabilities=(0.9,), free_gpus=((30.0,), (15.0,)))
sold = [SpotPromise(num_gpus=12, until_s=4 * 3600.0, probability=0.9)]

for words, promises in (("nothing sold", []), ("12 sold for 4 h", sold)):
    left = {hours: row[0] for hours, row in zip(menu.hours, menu.available(promises, 0.0), strict=True)}
    print(f"{words:16} left for 1 h {left[1.0]:3.0f}  for 4 h {left[4.0]:3.0f}")

for num_gpus in (2, 16, 24):
    offers = menu.offers(num_gpus, sold, 0.0)
    words = ", ".join(f"{offer.hours:g} h with {offer.probability:.0%}" for offer in offers) or "no promise"
    print(f"{num_gpus:2} GPUs: {words}")
