"""What files call the accuracies over tokens (`evaluation.accuracy`), in their order.

A module of its own, since reports of finished runs need the names and no model.
"""

_TOP = ("accuracy_top1", "accuracy_top3", "accuracy_top5")
ACCURACIES = (*_TOP, *(f"{name}_unk_competes" for name in _TOP))
