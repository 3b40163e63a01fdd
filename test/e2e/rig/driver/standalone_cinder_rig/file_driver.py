"""A Cinder volume driver that keeps every volume in an ordinary file.

Cinder's reference driver needs LVM and therefore device-mapper, which
containers and small test machines do not offer.  This one needs a directory.
Everything around the files is Cinder's own: the target helper that exports
them over iSCSI (cinder.volume.targets.tgt.TgtAdm, with CHAP and as many
portals as the backend's section of cinder.conf names), the volume manager and
its state machine.  It is a test fixture: copies are plain copies, so a
snapshot of a volume that is being written to is not even crash-consistent.
"""

import os
import socket

from os_brick.initiator.connectors import iscsi
from oslo_config import cfg
from oslo_log import log as logging
from oslo_utils import fileutils
from oslo_utils import units

from cinder import exception
from cinder import interface
from cinder.volume import configuration
from cinder.volume import driver
from cinder.volume.targets import tgt

LOG = logging.getLogger(__name__)

FILE_OPTIONS = [
    cfg.StrOpt('file_volume_directory',
               help='Directory that holds one file per volume and snapshot. '
                    'It is created when it does not exist.'),
    cfg.IntOpt('file_pool_gigabytes',
               default=10000,
               min=1,
               help='Capacity in GiB that the pool reports. Files are sparse, '
                    'so it may exceed what the filesystem holds.'),
]

cfg.CONF.register_opts(FILE_OPTIONS, group=configuration.SHARED_CONF_GROUP)


class LocalConnector(iscsi.ISCSIConnector):
    """What a volume counts as attached by; Cinder asks for the class only."""


@interface.volumedriver
class FileVolumeDriver(driver.VolumeDriver):
    """Volumes as sparse files, exported by tgtd."""

    VERSION = '1.0.0'
    CI_WIKI_NAME = 'none: a test fixture'

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.configuration.append_config_values(FILE_OPTIONS)
        self.backend_name = self.configuration.safe_get('volume_backend_name')
        self.directory = self.configuration.safe_get('file_volume_directory')
        self.target_driver = tgt.TgtAdm(configuration=self.configuration,
                                        executor=self._execute)

    @classmethod
    def get_driver_options(cls):
        return FILE_OPTIONS

    # Setting up and reporting.

    def check_for_setup_error(self):
        for option in ('file_volume_directory', 'volume_backend_name'):
            if not self.configuration.safe_get(option):
                raise exception.InvalidConfigurationValue(option=option,
                                                          value='')
        fileutils.ensure_tree(self.directory, mode=0o700)

    def _update_volume_stats(self):
        total = self.configuration.safe_get('file_pool_gigabytes')
        # Sizes count as if the files were not sparse, so that a test can fill
        # a pool without filling the disk.
        with os.scandir(self.directory) as entries:
            used = sum(entry.stat().st_size for entry in entries) / units.Gi
        self._stats = {
            'volume_backend_name': self.backend_name,
            'vendor_name': 'standalone-cinder',
            'driver_version': self.VERSION,
            'storage_protocol': self.target_driver.protocol,
            'shared_targets': False,
            'pools': [{
                'pool_name': self.backend_name,
                'total_capacity_gb': total,
                'free_capacity_gb': max(0, total - used),
                'provisioned_capacity_gb': used,
                'reserved_percentage': 0,
                'thick_provisioning_support': True,
                'thin_provisioning_support': False,
                'QoS_support': False,
                'multiattach': True,
                'backend_state': 'up',
            }],
        }

    def get_pool(self, volume):
        return self.backend_name

    # Volumes and snapshots.

    def local_path(self, volume):
        return os.path.join(self.directory, volume['name'])

    def _truncate(self, path, gigabytes):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            os.ftruncate(descriptor, gigabytes * units.Gi)
        finally:
            os.close(descriptor)

    def _copy(self, source, destination):
        # cp finds the holes, and clones extents where the filesystem can.
        self._execute('cp', '--sparse=always', '--reflink=auto',
                      '--', source, destination)

    def create_volume(self, volume):
        self._truncate(self.local_path(volume), volume['size'])

    def create_volume_from_snapshot(self, volume, snapshot):
        self._copy(self.local_path(snapshot), self.local_path(volume))
        self._truncate(self.local_path(volume), volume['size'])

    def create_cloned_volume(self, volume, src_vref):
        self._copy(self.local_path(src_vref), self.local_path(volume))
        self._truncate(self.local_path(volume), volume['size'])

    def delete_volume(self, volume):
        fileutils.delete_if_exists(self.local_path(volume))

    def extend_volume(self, volume, new_size):
        self._truncate(self.local_path(volume), new_size)
        # tgtd looks at the size when it opens the file: the export, where one
        # exists, is made again.  An attached initiator keeps its session.
        self.target_driver.extend_target(volume)

    def create_snapshot(self, snapshot):
        self._copy(self.local_path(snapshot['volume']),
                   self.local_path(snapshot))

    def delete_snapshot(self, snapshot):
        fileutils.delete_if_exists(self.local_path(snapshot))

    # Cinder changes the key of a clone of an encrypted volume on this machine,
    # whose kernel has no initiator: it gets the file itself.

    def _attach_volume(self, context, volume, properties, remote=False):
        return {'device': {'path': self.local_path(volume)},
                'connector': LocalConnector(root_helper=None)}, volume

    def _detach_volume(self, context, attach_info, volume, properties,
                       force=False, remote=False, ignore_errors=False):
        pass

    # Exports.

    def _export_record(self, volume):
        """The file by which tgt-admin knows the volume's target."""
        return os.path.join(self.target_driver.volumes_dir, volume['name'])

    def validate_connector(self, connector):
        return self.target_driver.validate_connector(connector)

    def create_export(self, context, volume, connector):
        path = self.local_path(volume)
        if not os.path.exists(path):
            # Without this check tgt-admin is tried, waited for and tried
            # again for ten seconds before the same answer is given.
            raise exception.VolumeBackendAPIException(
                data='volume %s has no backing file' % volume['id'])
        export = self.target_driver.create_export(context, volume, path)
        return {'provider_location': export['location'],
                'provider_auth': export['auth']}

    def ensure_export(self, context, volume):
        """Called for volumes that are in use when the service starts."""
        return self.target_driver.ensure_export(context, volume,
                                                self.local_path(volume))

    def remove_export(self, context, volume):
        self.target_driver.remove_export(context, volume)
        # The base class leaves its record behind when tgtd has lost the
        # target; the next start of tgtd would export the volume again.
        fileutils.delete_if_exists(self._export_record(volume))

    def initialize_connection(self, volume, connector):
        if connector.get('host') == socket.gethostname():
            # The backup service is on this machine, too.
            return {'driver_volume_type': 'local',
                    'data': {'device_path': self.local_path(volume)}}
        return self.target_driver.initialize_connection(volume, connector)

    def terminate_connection(self, volume, connector, **kwargs):
        """Keeps the export, as Cinder's LVM driver does: detaching removes it.

        The answer tells the volume manager whether other attachments still
        need the export.
        """
        if (connector or {}).get('host') == socket.gethostname():
            # The backup service opens for writing what it restores, which
            # empties a file; a device would stay as large as it is.
            self._truncate(self.local_path(volume), volume['size'])
        self.target_driver.terminate_connection(volume, connector, **kwargs)
        return len(volume.volume_attachment) > 1


class RefusingVolumeDriver(FileVolumeDriver):
    """A backend on which every creation ends in the state "error"."""

    def _refuse(self, volume):
        raise exception.VolumeBackendAPIException(
            data='this backend refuses every volume, by design of the test')

    def create_volume(self, volume):
        self._refuse(volume)

    def create_volume_from_snapshot(self, volume, snapshot):
        self._refuse(volume)

    def create_cloned_volume(self, volume, src_vref):
        self._refuse(volume)
