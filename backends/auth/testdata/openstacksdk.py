"""Shows how openstacksdk reads clouds.yaml and the OS_* variables.

Without arguments it lists the words that openstacksdk and keystoneauth use like keys,
from their own sources and tables, and with "keys" those that change anything. With
"read" it reads one case a line and prints what each leads to: the login that Keystone would receive, and what selects and secures
the endpoint of block storage.
"""
import ast
import glob
import inspect
import json
import os
import re
import sys
import warnings

warnings.simplefilter('ignore')
import logging
logging.disable(logging.CRITICAL)
for name in [name for name in os.environ if name.startswith('OS_')]:
    del os.environ[name]

from keystoneauth1 import loading
from openstack.config import cloud_region, loader, vendors
import openstack.version
import os_service_types
import yaml

SERVICE = 'block-storage'
TYPES = os_service_types.ServiceTypes().get_all_types(SERVICE)
LOADER = getattr(yaml, 'CSafeLoader', yaml.SafeLoader)

# Finding a plugin reads all installed packages.
found = {}
find = loading.get_plugin_loader
loading.get_plugin_loader = lambda name: found[name] if name in found else found.setdefault(name, find(name))


class Config(loader.OpenStackConfig):
    """Reads files from memory."""

    def __init__(self, files, **more):
        self.files = {name: yaml.load(text, LOADER) for name, text in files.items()}
        super().__init__(**more)

    def _load_config_file(self):
        return 'clouds.yaml', self.files.get('clouds.yaml') or {}

    def _load_secure_file(self):
        return 'secure.yaml', self.files.get('secure.yaml') or {}

    def _load_vendor_file(self):
        return 'clouds-public.yaml', self.files.get('clouds-public.yaml') or {}


class Keystone:
    """Keeps the login instead of sending it."""

    login = url = None

    def post(self, url, json=None, data=None, **ignored):
        self.url, self.login = url, json or data
        raise LookupError


def read(case):
    for name, value in case.get('environment', {}).items():
        os.environ[name] = value
    try:
        cloud = 'envvars' if 'environment' in case else 'gold'
        config = Config(case.get('files', {}), load_envvars='environment' in case)
        region = config.get_one(cloud, region_name=case.get('region'))
        keystone = Keystone()
        plugin = region.get_auth()
        if hasattr(plugin, 'create_plugin'):
            address = re.sub(r'/v(2\.0|3)/?$', '', plugin.auth_url.rstrip('/')) + '/v3'
            plugin = plugin.create_plugin(keystone, (3, 0), address)
        try:
            plugin.get_auth_ref(keystone)
        except LookupError:
            pass
        login = json.loads(keystone.login) if isinstance(keystone.login, (str, bytes)) else keystone.login
        if nameless(login):
            return 'refused'
        verify, certificate = region.get_requests_verify_args()
        if verify not in (True, False) and not verify.startswith('/') or not isinstance(region.get_region_name(SERVICE) or '', str):
            return 'refused'
        certificate, key = certificate if isinstance(certificate, tuple) else (certificate, None)
        interface = region.get_interface(SERVICE)
        has = [region.config.get('has_' + name.replace('-', '_')) for name in TYPES]
        # What a service is, but not who may use it, where it is and whether it is safe.
        tuning = {name: value for name, value in {
            'version': region.get_api_version(SERVICE),
            'microversion': region.get_default_microversion(SERVICE),
            'timeout': region.config.get('api_timeout'),
            'connect retries': region.get_connect_retries(SERVICE),
            'status retries': region.get_status_code_retries(SERVICE),
            'rate': region.get_rate_limit(SERVICE),
            'concurrency': region.get_concurrency(SERVICE),
        }.items() if value is not None}
        return json.loads(json.dumps({
            'at': keystone.url or plugin.__class__.__name__,
            'login': (login or {}).get('auth'),
            'region': region.get_region_name(SERVICE) or '',
            'interface': interface.removesuffix('URL') if isinstance(interface, str) else interface or '',
            'endpoint': region.get_endpoint(SERVICE) or '',
            'type': region.get_service_type(SERVICE),
            'name': region.get_service_name(SERVICE) or '',
            'verify': bool(verify), 'ca': verify if verify not in (True, False) else '',
            'cert': certificate or '', 'key': key or '',
            'disabled': False in has,
            'tuning': tuning,
        }))
    except Exception:
        return 'refused'
    finally:
        for name in case.get('environment', {}):
            del os.environ[name]


def nameless(login):
    """Tells a login that Keystone rejects: a name is unique only within a domain."""
    login = (login or {}).get('auth', {})
    parts = [login.get('scope', {}).get('project')] if isinstance(login.get('scope'), dict) else []
    parts += [method.get('user') for method in login.get('identity', {}).values() if isinstance(method, dict)]
    return any(part and 'name' in part and 'domain' not in part for part in parts)


def words():
    """Collects every word that the sources use like a key."""
    words = set()
    prefixed = set()
    for module in loader, cloud_region:
        for node in ast.walk(ast.parse(inspect.getsource(module))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                words.add(node.value)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args and isinstance(node.args[0], ast.Constant):
                if node.func.attr in ('_get_config', '_get_service_config', 'endswith'):
                    prefixed.add(node.args[0].value)
    directory = os.path.dirname(inspect.getsourcefile(loader))
    for name in 'schema.json', 'vendor-schema.json':
        with open(os.path.join(directory, name)) as file:
            words.update(property_names(json.load(file)))
    with open(os.path.join(directory, 'defaults.json')) as file:
        words.update(json.load(file))
    for profile in vendors._get_vendor_defaults().values():
        words.update(profile)
        words.update(profile.get('auth', {}))
    for plugin in loading.get_available_plugin_names():
        for option in loading.get_plugin_loader(plugin).get_options():
            for one in [option] + list(option.deprecated):
                words.update({one.name, one.dest})
    for one in prefixed:
        words.update('%s_%s' % (service, one.strip('_')) for service in TYPES if isinstance(one, str))
    words.update('has_' + service for service in TYPES)
    words = {word.replace('-', '_') for word in words if word}
    return sorted(word for word in words if re.fullmatch('[a-z][a-z0-9_]{2,40}', word))


def property_names(schema):
    if isinstance(schema, dict):
        for name, value in schema.items():
            if name == 'properties' and isinstance(value, dict):
                yield from value
            yield from property_names(value)


BASE = ['auth_url: https://k/v3', 'username: u', 'password: p', 'user_domain_name: D', 'project_name: s', 'project_domain_name: E']


def matters(key):
    """Tells whether a key changes anything, in an account from which one other key may be missing."""
    for missing in [None] + BASE:
        account = ', '.join(line for line in BASE if line != missing and not line.startswith(key + ':'))

        def outcome(top, auth):
            return read({'files': {'clouds.yaml': 'clouds: {gold: {auth: {%s%s}%s}}' % (account, auth, top)}})

        without, unknown = outcome('', ''), outcome('', ', no_such_key: x')
        for value in ['other', 'internal', 'https://other/v3', 'off', '[other]', '{other: 1}', '{block-storage: 2}'][:3 if missing else None]:
            if outcome(', %s: %s' % (key, value), '') != without or outcome('', ', %s: %s' % (key, value)) != unknown:
                return True
    return False


if sys.argv[1:] == ['read']:
    for line in sys.stdin:
        print(json.dumps(read(json.loads(line)), sort_keys=True))
elif sys.argv[1:] == ['keys']:
    print(json.dumps([key for key in words() if matters(key)]))
else:
    print(json.dumps({'version': openstack.version.__version__, 'words': words()}))
