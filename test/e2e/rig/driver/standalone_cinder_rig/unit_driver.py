"""A Cinder volume driver that exports volumes as logical units of shared targets.

Most arrays do not make a target for every volume, as Cinder's reference driver
does: their volumes are units of a few targets, and the number of a unit that was
unmapped is given to the next one.  A node that still has the old disk then reads
and writes another volume under it.  The option unit_target_per_initiator tells
whether an initiator has a target of its own, which lets in nobody else, or all
of them share one.

Units keep the identity that tgtd gives them: it is made of the numbers of target
and unit, so that a node cannot tell the new volume from the old one by it.
"""

import re

from oslo_concurrency import processutils
from oslo_config import cfg

from cinder import coordination
from cinder import exception
from cinder import interface
from cinder.volume import configuration

from standalone_cinder_rig import file_driver

UNIT_OPTIONS = [
    cfg.BoolOpt('unit_target_per_initiator',
                default=False,
                help='Give every initiator a target that only it can use.'),
]

cfg.CONF.register_opts(UNIT_OPTIONS, group=configuration.SHARED_CONF_GROUP)


@interface.volumedriver
class UnitVolumeDriver(file_driver.FileVolumeDriver):
    """Volumes as units of shared targets."""

    CI_WIKI_NAME = 'none: a test fixture'

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.configuration.append_config_values(UNIT_OPTIONS)

    @classmethod
    def get_driver_options(cls):
        return super().get_driver_options() + UNIT_OPTIONS

    def extend_volume(self, volume, new_size):
        self._truncate(self.local_path(volume), new_size)

    # The connection makes the export, since the unit depends on the initiator.

    def create_export(self, context, volume, connector):
        pass

    def ensure_export(self, context, volume):
        pass

    def remove_export(self, context, volume):
        pass

    @coordination.synchronized('standalone-cinder-rig-units')
    def initialize_connection(self, volume, connector):
        name = self._target_name(connector)
        target = self._targets().get(name) or self._make_target(name, connector)
        path = self.local_path(volume)
        unit = target['units'].get(path)
        if unit is None:
            used = target['units'].values()
            unit = next(n for n in range(1, 256) if n not in used)
            self._admin('new', 'logicalunit', target['number'],
                        '--lun', str(unit), '--backing-store', path)
        return {
            'driver_volume_type': 'iscsi',
            'data': {
                'target_discovered': False,
                'target_iqn': name,
                'target_portal': '%s:%s' % (
                    self.configuration.target_ip_address,
                    self.configuration.target_port),
                'target_lun': unit,
                'volume_id': volume['id'],
            },
        }

    def _make_target(self, name, connector):
        # The other backends' targets are made meanwhile, and their numbers come from the
        # same row: a number that one of them took first is not tried again.
        for _ in range(10):
            taken = [target['number'] for target in self._targets().values()]
            number = max(taken, default=0) + 1
            try:
                self._admin('new', 'target', number, '--targetname', name,
                            attempts=1)
                break
            except processutils.ProcessExecutionError as e:
                if 'already exists' not in e.stderr:
                    raise
        else:
            raise exception.VolumeBackendAPIException(
                data='no free number for target %s' % name)
        if self.configuration.unit_target_per_initiator:
            access = ('--initiator-name', connector['initiator'])
        else:
            access = ('--initiator-address', 'ALL')
        self._admin('bind', 'target', number, *access)
        return {'number': number, 'units': {}}

    @coordination.synchronized('standalone-cinder-rig-units')
    def terminate_connection(self, volume, connector, **kwargs):
        path = self.local_path(volume)
        others = len(volume.volume_attachment) > 1
        if others and not self.configuration.unit_target_per_initiator:
            return True
        for name, target in self._targets().items():
            if connector and name != self._target_name(connector):
                continue
            unit = target['units'].get(path)
            if unit is not None:
                self._admin('delete', 'logicalunit', target['number'],
                            '--lun', str(unit))
        return others

    def _target_name(self, connector):
        owner = 'all'
        if self.configuration.unit_target_per_initiator:
            owner = re.sub('[^a-z0-9-]', '-', connector['initiator'].lower())
        return 'iqn.2026-01.example.rig:%s-%s' % (self.backend_name, owner)

    def _admin(self, operation, mode, target, *arguments, attempts=10):
        self._execute('tgtadm', '--lld', 'iscsi', '--op', operation,
                      '--mode', mode, '--tid', str(target), *arguments,
                      # A unit that has a command under way is not deleted.
                      attempts=attempts, delay_on_retry=True)

    def _targets(self):
        """What tgtd has: by name, each target's number and units by path."""
        output, _ = self._execute('tgtadm', '--lld', 'iscsi', '--op', 'show',
                                  '--mode', 'target')
        targets, target, unit = {}, None, None
        for line in output.splitlines():
            if match := re.match(r'Target (\d+): (\S+)', line):
                target = {'number': int(match[1]), 'units': {}}
                targets[match[2]] = target
            elif match := re.match(r'\s+LUN: (\d+)', line):
                unit = int(match[1])
            elif match := re.match(r'\s+Backing store path: (/\S+)', line):
                target['units'][match[1]] = unit
        return targets
