"""A key manager for a Cinder that some use with Keystone and others without.

Barbican wants Keystone's token, and is found in its catalog.  Others get
Cinder's own key manager, which has one key for all volumes.
"""

from castellan.key_manager import barbican_key_manager
from castellan.key_manager import key_manager

from cinder.keymgr import conf_key_mgr


class KeyManager(key_manager.KeyManager):
    """Passes each request on to one of two key managers."""

    def __init__(self, configuration):
        super().__init__(configuration)
        self._barbican = barbican_key_manager.BarbicanKeyManager(configuration)
        self._fixed = conf_key_mgr.ConfKeyManager(configuration)

    def _of(self, context):
        return self._barbican if context.service_catalog else self._fixed

    def create_key(self, context, *args, **kwargs):
        return self._of(context).create_key(context, *args, **kwargs)

    def create_key_pair(self, context, *args, **kwargs):
        return self._of(context).create_key_pair(context, *args, **kwargs)

    def store(self, context, *args, **kwargs):
        return self._of(context).store(context, *args, **kwargs)

    def get(self, context, *args, **kwargs):
        return self._of(context).get(context, *args, **kwargs)

    def list(self, context, *args, **kwargs):
        return self._of(context).list(context, *args, **kwargs)

    def delete(self, context, *args, **kwargs):
        return self._of(context).delete(context, *args, **kwargs)
