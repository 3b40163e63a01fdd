"""Cinder's RBD driver with the option that makes it send its user's key.

Clouds up to the release Ussuri had rbd_keyring_conf; since then only programs
that use the drivers without Cinder's services can set it. The driver's own
code still sends what the option names, so that registering it is enough.
"""

from oslo_config import cfg

from cinder import interface
from cinder.volume import configuration
from cinder.volume.drivers import rbd

KEYRING_OPTIONS = [
    cfg.StrOpt('rbd_keyring_conf',
               help='Keyring file whose text is sent with every connection.'),
]

cfg.CONF.register_opts(KEYRING_OPTIONS, group=configuration.SHARED_CONF_GROUP)


@interface.volumedriver
class KeyringRBDDriver(rbd.RBDDriver):
    """RBD volumes whose connections hold the key of their user."""

    CI_WIKI_NAME = 'none: a test fixture'

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.configuration.append_config_values(KEYRING_OPTIONS)
        self._set_keyring_attributes()
