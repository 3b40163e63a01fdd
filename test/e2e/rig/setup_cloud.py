#!/usr/bin/python3
"""Fills a freshly started Keystone and Cinder and proves that they work.

Called by rig.sh, which passes everything in the environment:

    setup_cloud.py identity   users, projects, service catalog
    setup_cloud.py storage    volume types, once every backend has reported
    setup_cloud.py verify     one volume of each type, made and deleted
    setup_cloud.py write      the files "env" and "clouds.yaml"

Every step may be repeated: what exists is left alone.
"""

import os
import re
import sys
import time

import requests

REGION = 'RegionOne'
DOMAIN = 'Default'
# A project of the endpoint without authentication. Cinder takes only
# hexadecimal digits and dashes in a URL.
NOAUTH_PROJECT = '0123456789abcdef0123456789abcdef'
TENANTS = ('team-a', 'team-b')
# Whose users may make and read keys in Barbican; the second tenant has none.
KEY_ROLE = 'creator'
CREDENTIAL_NAME = 'standalone-cinder-e2e'
# Volume type: the state in which a new volume of it has to end.
TYPES = {'iscsi': 'available', 'iscsi-mp': 'available', 'units': 'available',
         'units-masked': 'available', 'shared': 'available',
         'other': 'available', 'limited': 'available', 'luks': 'available',
         'luks2': 'available', 'fail': 'error'}
# Backends that are chosen by availability zone, and have a type of another.
ZONES = ('zone-b', 'zone-full')
# The backend and further extra specs of types that are not called after their
# backend.
EXTRA_SPECS = {
    'shared': {'volume_backend_name': 'iscsi', 'multiattach': '<is> True'},
    # Like iscsi in all but the name, so that Cinder changes one into the other.
    'other': {'volume_backend_name': 'iscsi'},
    'limited': {'volume_backend_name': 'iscsi'},
    'luks': {'volume_backend_name': 'iscsi'},
    'luks2': {'volume_backend_name': 'iscsi-mp'},
    'rbd-luks': {'volume_backend_name': 'rbd'},
}
# The providers of encryption.
ENCRYPTED = {'luks': 'luks', 'luks2': 'luks2', 'rbd-luks': 'luks'}
# Front-end QoS, which the nodes hold.
LIMITS = {'limited': {'total_bytes_sec': '524288', 'total_iops_sec': '20'}}
# A group type that asks for snapshots of one moment. No driver here provides them,
# and Cinder takes them one after another then, without telling.
GROUP_TYPE = 'consistent'
# How long a volume may take; a quiet machine needs a quarter of a second.
VOLUME_TIMEOUT = 60
POOLS_TIMEOUT = 120


class SetupError(Exception):
    """A step that did not end as it has to; the text says what and where."""


def setting(name):
    try:
        return os.environ[name]
    except KeyError:
        raise SetupError('%s is not set: call rig.sh instead of this file'
                         % name) from None


def secret_name(tenant):
    return tenant.upper().replace('-', '_') + '_PASSWORD'


class Service:
    """JSON over HTTP with one token; unexpected answers are errors."""

    def __init__(self, url, token=None):
        self.url = url
        self.session = requests.Session()
        # A proxy in the environment is not for the loopback interface.
        self.session.trust_env = False
        if token:
            self.session.headers['X-Auth-Token'] = token

    def call(self, method, path, body=None, expect=(200, 201, 202, 204),
             timeout=60):
        url = self.url + path
        answer = self.session.request(method, url, json=body, timeout=timeout)
        if answer.status_code not in expect:
            raise SetupError('%s %s answered %d: %s' % (
                method, url, answer.status_code, answer.text[:500]))
        return answer

    def at(self, microversion):
        self.session.headers['OpenStack-API-Version'] = 'volume ' + microversion
        return self

    def get(self, path, **options):
        return self.call('GET', path, **options).json()

    def post(self, path, body):
        return self.call('POST', path, body).json()


def keystone_url():
    return 'http://127.0.0.1:%s/v3' % setting('KEYSTONE_PORT')


def log_in(user, password, project):
    body = {'auth': {
        'identity': {'methods': ['password'], 'password': {'user': {
            'name': user, 'domain': {'name': DOMAIN}, 'password': password}}},
        'scope': {'project': {'name': project, 'domain': {'name': DOMAIN}}}}}
    answer = Service(keystone_url()).call('POST', '/auth/tokens', body)
    return answer.headers['X-Subject-Token'], answer.json()['token']


def keystone_as_admin():
    token, _ = log_in('admin', setting('ADMIN_PASSWORD'), 'admin')
    return Service(keystone_url(), token)


def cinder_without_authentication():
    return Service('http://127.0.0.1:%s/v3/%s' % (
        setting('NOAUTH_PORT'), NOAUTH_PROJECT), 'admin:' + NOAUTH_PROJECT)


def cinder_as(tenant):
    token, contents = log_in(tenant, setting(secret_name(tenant)), tenant)
    return Service('http://127.0.0.1:%s/v3/%s' % (
        setting('CINDER_PORT'), contents['project']['id']), token)


def find_or_create(keystone, collection, name, properties):
    """Returns the id of the one object of that name in a collection."""
    for found in keystone.get('/%s?name=%s' % (collection, name))[collection]:
        return found['id']
    kind = collection[:-1]
    body = {kind: dict(properties, name=name)}
    return keystone.post('/' + collection, body)[kind]['id']


def grant(keystone, project, user, role):
    keystone.call('PUT', '/projects/%s/users/%s/roles/%s'
                  % (project, user, role))


def set_up_identity():
    keystone = keystone_as_admin()
    roles = {role['name']: role['id']
             for role in keystone.get('/roles')['roles']}
    # Keystone's bootstrap of this release makes admin, member and reader.
    for name in ('service', KEY_ROLE):
        roles[name] = find_or_create(keystone, 'roles', name, {})

    project = find_or_create(keystone, 'projects', 'service',
                             {'domain_id': 'default'})
    user = find_or_create(keystone, 'users', 'cinder', {
        'domain_id': 'default', 'password': setting('CINDER_PASSWORD')})
    grant(keystone, project, user, roles['admin'])
    grant(keystone, project, user, roles['service'])

    for tenant in TENANTS:
        project = find_or_create(keystone, 'projects', tenant,
                                 {'domain_id': 'default'})
        user = find_or_create(keystone, 'users', tenant, {
            'domain_id': 'default', 'password': setting(secret_name(tenant)),
            'default_project_id': project})
        grant(keystone, project, user, roles['member'])
        if tenant == TENANTS[0]:
            grant(keystone, project, user, roles[KEY_ROLE])

    # Clouds list Cinder under its old service type, its new one, or both.
    url = 'http://127.0.0.1:%s/v3/$(project_id)s' % setting('CINDER_PORT')
    endpoints = keystone.get('/endpoints')['endpoints']
    keys = 'http://127.0.0.1:%s' % setting('BARBICAN_PORT')
    for name, kind, url in (('cinderv3', 'volumev3', url),
                            ('cinder', 'block-storage', url),
                            ('barbican', 'key-manager', keys)):
        service = find_or_create(keystone, 'services', name, {'type': kind})
        known = {endpoint['interface'] for endpoint in endpoints
                 if endpoint['service_id'] == service}
        for interface in ('public', 'internal', 'admin'):
            if interface not in known:
                keystone.post('/endpoints', {'endpoint': {
                    'service_id': service, 'interface': interface,
                    'region_id': REGION, 'url': url}})


def set_up_storage():
    cinder = cinder_without_authentication()
    existing = {kind['name'] for kind in cinder.get('/types')['volume_types']}
    for name in volume_types():
        if name not in existing:
            kind = cinder.post('/types', {'volume_type': {
                'name': name, 'os-volume-type-access:is_public': True,
                'extra_specs': extra_specs(name)}})['volume_type']
            if name in ENCRYPTED:
                cinder.post('/types/%s/encryption' % kind['id'], {'encryption': {
                    'provider': ENCRYPTED[name], 'cipher': 'aes-xts-plain64',
                    'key_size': 256, 'control_location': 'front-end'}})
            if name in LIMITS:
                specs = cinder.post('/qos-specs', {'qos_specs': dict(
                    LIMITS[name], name=name, consumer='front-end')})
                cinder.call('GET', '/qos-specs/%s/associate?vol_type_id=%s' % (
                    specs['qos_specs']['id'], kind['id']))
    groups = cinder_without_authentication().at('3.11')
    if GROUP_TYPE not in {kind['name'] for kind in groups.get('/group_types')['group_types']}:
        kind = groups.post('/group_types', {'group_type': {'name': GROUP_TYPE}})['group_type']
        groups.post('/group_types/%s/group_specs' % kind['id'], {
            'group_specs': {'consistent_group_snapshot_enabled': '<is> True'}})
    wait_for_pools(cinder)


def volume_types():
    types = dict(TYPES)
    if os.environ.get('RIG_CEPH') == '1':
        types.update(dict.fromkeys(('rbd', 'rbd-keyring', 'rbd-luks'),
                                   'available'))
    return types


def extra_specs(name):
    return EXTRA_SPECS.get(name, {'volume_backend_name': name})


def wait_for_pools(cinder):
    """Waits until the scheduler knows a pool of every backend."""
    wanted = {extra_specs(name)['volume_backend_name']
              for name in volume_types()}
    wanted.update(ZONES)
    deadline = time.monotonic() + POOLS_TIMEOUT
    while True:
        try:
            # A question that the scheduler was not yet there to receive is
            # lost; the API would wait a minute for its answer.
            pools = cinder.get('/scheduler-stats/get_pools', timeout=2)['pools']
        except requests.Timeout:
            pools = []
        # rig@BACKEND#VOLUME_BACKEND_NAME
        known = {part for pool in pools
                 for part in re.split('[@#]', pool['name'])}
        if wanted <= known:
            return
        if time.monotonic() > deadline:
            raise SetupError(
                'the scheduler does not know the backends %s after %d s: see '
                'log/cinder-volume.log' % (
                    ', '.join(sorted(wanted - known)), POOLS_TIMEOUT))
        time.sleep(0.25)


def verify():
    """Makes a volume of every type, over both endpoints by turns."""
    clouds = [cinder_as('team-a'), cinder_without_authentication()]
    made = []
    for number, (kind, state) in enumerate(volume_types().items()):
        cinder = clouds[number % len(clouds)]
        volume = cinder.post('/volumes', {'volume': {
            'size': 1, 'name': 'rig-verify-' + kind, 'volume_type': kind}})
        made.append((kind, state, cinder, volume['volume']['id']))

    for kind, wanted, cinder, volume in made:
        state = wait_while(cinder, volume, {'creating'})
        if state != wanted:
            raise SetupError(
                'a volume of type %s is %s, expected %s: see '
                'log/cinder-volume.log and log/cinder-scheduler.log'
                % (kind, state, wanted))
        print('    type %s: %s' % (kind, state))
    for _, _, cinder, volume in made:
        cinder.call('DELETE', '/volumes/' + volume)
    for kind, _, cinder, volume in made:
        state = wait_while(cinder, volume, {'deleting'})
        if state != 'gone':
            raise SetupError('the deleted volume of type %s is %s'
                             % (kind, state))


def wait_while(cinder, volume, states):
    """Polls a volume until it leaves the given states; "gone" means a 404."""
    deadline = time.monotonic() + VOLUME_TIMEOUT
    while True:
        answer = cinder.call('GET', '/volumes/' + volume, expect=(200, 404))
        if answer.status_code == 404:
            return 'gone'
        state = answer.json()['volume']['status']
        if state not in states or time.monotonic() > deadline:
            return state
        time.sleep(0.1)


def application_credential(tenant):
    """Makes the tenant's application credential anew: its secret is shown
    only once."""
    token, contents = log_in(tenant, setting(secret_name(tenant)), tenant)
    keystone = Service(keystone_url(), token)
    path = '/users/%s/application_credentials' % contents['user']['id']
    for found in keystone.get(path)['application_credentials']:
        if found['name'] == CREDENTIAL_NAME:
            keystone.call('DELETE', '%s/%s' % (path, found['id']))
    made = keystone.post(path, {'application_credential': {
        'name': CREDENTIAL_NAME}})['application_credential']
    return made['id'], made['secret']


def write_private(path, text):
    descriptor = os.open(path + '.new', os.O_WRONLY | os.O_CREAT | os.O_TRUNC,
                         0o600)
    with os.fdopen(descriptor, 'w') as stream:
        stream.write(text)
    os.replace(path + '.new', path)


CLOUD = '''\
  {name}:
    auth_type: {kind}
    auth:
      auth_url: {url}
{auth}    region_name: {region}
    interface: public
    identity_api_version: 3
'''


def cloud_entry(name, kind, auth):
    lines = ''.join('      %s: "%s"\n' % item for item in auth.items())
    return CLOUD.format(name=name, kind=kind, url=keystone_url(), auth=lines,
                        region=REGION)


def password_cloud(name):
    return cloud_entry(name, 'password', {
        'username': name, 'password': setting(secret_name(name)),
        'project_name': name, 'user_domain_name': DOMAIN,
        'project_domain_name': DOMAIN})


def write_files():
    state = setting('STATE')
    credential_id, credential_secret = application_credential('team-a')
    clouds = os.path.join(state, 'clouds.yaml')
    write_private(clouds, 'clouds:\n' + ''.join([
        password_cloud('team-a'), password_cloud('team-b'),
        cloud_entry('team-a-appcred', 'v3applicationcredential', {
            'application_credential_id': credential_id,
            'application_credential_secret': credential_secret}),
        password_cloud('admin')]))

    noauth = 'http://127.0.0.1:%s/v3' % setting('NOAUTH_PORT')
    port = setting('ISCSI_PORT')
    values = {
        'RIG_STATE': state,
        'RIG_CLOUDS_FILE': clouds,
        'RIG_REGION': REGION,
        'RIG_DOMAIN': DOMAIN,
        'RIG_NOAUTH_ENDPOINT': noauth,
        'RIG_NOAUTH_USER': 'admin',
        'RIG_NOAUTH_PROJECT': NOAUTH_PROJECT,
        'RIG_KEYSTONE_URL': keystone_url(),
        'RIG_CINDER_URL': 'http://127.0.0.1:%s/v3' % setting('CINDER_PORT'),
    }
    for user in TENANTS + ('admin',):
        prefix = 'RIG_' + user.upper().replace('-', '_')
        password = setting(secret_name(user))
        _, contents = log_in(user, password, user)
        values[prefix + '_USER'] = user
        values[prefix + '_PASSWORD'] = password
        values[prefix + '_PROJECT'] = user
        values[prefix + '_PROJECT_ID'] = contents['project']['id']
    values.update({
        'RIG_TEAM_A_CREDENTIAL_ID': credential_id,
        'RIG_TEAM_A_CREDENTIAL_SECRET': credential_secret,
        'RIG_TYPE_ISCSI': 'iscsi',
        'RIG_TYPE_ISCSI_MULTIPATH': 'iscsi-mp',
        'RIG_TYPE_UNITS': 'units',
        'RIG_TYPE_UNITS_MASKED': 'units-masked',
        'RIG_TYPE_SHARED': 'shared',
        'RIG_TYPE_FAIL': 'fail',
        'RIG_TYPE_LIMITED': 'limited',
        'RIG_TYPE_LUKS': 'luks',
        'RIG_TYPE_LUKS2': 'luks2',
        'RIG_FIXED_KEY': setting('FIXED_KEY'),
        'RIG_PORTAL': '127.0.0.1:' + port,
        'RIG_PORTAL_SECOND': '127.0.0.2:' + port,
        'RIG_TGT_ADMIN': os.path.join(state, 'bin', 'tgt-admin'),
        'RIG_TGTADM': os.path.join(state, 'bin', 'tgtadm'),
        'CONTRACT_NOAUTH_ENDPOINT': noauth,
        'CONTRACT_NOAUTH_PROJECT': NOAUTH_PROJECT,
        'CONTRACT_KEYSTONE_URL': keystone_url(),
        'CONTRACT_DOMAIN': DOMAIN,
        'CONTRACT_REGION': REGION,
        'CONTRACT_TYPE_ISCSI': 'iscsi',
        'CONTRACT_TYPE_ISCSI_MULTIPATH': 'iscsi-mp',
        'CONTRACT_TYPE_SHARED': 'shared',
        'CONTRACT_TYPE_OTHER': 'other',
        'CONTRACT_TYPE_FAIL': 'fail',
        'CONTRACT_TYPE_LUKS': 'luks',
        'CONTRACT_TYPE_LIMITED': 'limited',
        'CONTRACT_GROUP_TYPE': GROUP_TYPE,
        'CONTRACT_BACKUPS': 'yes',
        'CONTRACT_CREDENTIAL_ID': credential_id,
        'CONTRACT_CREDENTIAL_SECRET': credential_secret,
    })
    for prefix, user in (('', 'team-a'), ('OTHER_', 'team-b'),
                         ('ADMIN_', 'admin')):
        values['CONTRACT_%sUSER' % prefix] = user
        values['CONTRACT_%sPASSWORD' % prefix] = setting(secret_name(user))
        values['CONTRACT_%sPROJECT' % prefix] = user
    if 'rbd' in volume_types():
        values['RIG_TYPE_RBD'] = values['CONTRACT_TYPE_RBD'] = 'rbd'
        values['RIG_TYPE_RBD_KEYRING'] = 'rbd-keyring'
        values['RIG_TYPE_RBD_LUKS'] = 'rbd-luks'
        values['RIG_CEPH_CONF'] = os.path.join(state, 'etc', 'ceph.conf')
        values['RIG_CEPH_KEYRING'] = os.path.join(
            state, 'data', 'ceph', 'cinder.keyring')
        values['RIG_CEPH_MONITOR'] = '127.0.0.1:' + setting('CEPH_PORT')
    for name, value in values.items():
        # The file is sourced by shells and split at "=" by the Go tests:
        # neither may need quotes.
        if not re.fullmatch(r'[A-Za-z0-9_./:@+-]+', value):
            raise SetupError('the value of %s cannot be written without '
                             'quotes: rename the state directory' % name)
    write_private(os.path.join(state, 'env'), ''.join(
        '%s=%s\n' % item for item in values.items()))


STEPS = {'identity': set_up_identity, 'storage': set_up_storage,
         'verify': verify, 'write': write_files}


def main(arguments):
    if len(arguments) != 1 or arguments[0] not in STEPS:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        STEPS[arguments[0]]()
    except (SetupError, requests.RequestException) as error:
        print('%s: %s' % (arguments[0], error), file=sys.stderr)
        return 1
    return 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
