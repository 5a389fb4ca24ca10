"""What the fake states of runs have in common."""

import copy

from trimtab.ports import Snapshot


class Saving:
    """The writing half of a `RunState` from `write_models`, `tensors` and `values`; the policy is all that models write."""

    def write_policy(self, directory):
        self.write_models(directory)

    def snapshot(self, *, is_copied, policy_only=False):
        source = copy.deepcopy(self) if is_copied else self
        if policy_only:
            return Snapshot(write_models=source.write_policy, tensors={}, values={})
        return Snapshot(write_models=source.write_models, tensors=source.tensors(), values=source.values())
