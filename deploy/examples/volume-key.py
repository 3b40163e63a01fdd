#!/usr/bin/env python3
"""Print the passphrase of a volume that a rule with encrypt has encrypted.

    volume-key.py RECORD FILE | cryptsetup open --type luks2 --key-file=- /dev/sdX data

RECORD is the metadata standalone-cinder.openstack.org/encryption of the volume, a copy or
a snapshot: 1 SECRET/ENTRY ORIGIN KEY. If there are the metadata encryption-next or
encryption-former, too, the key of one of the three opens a copy. FILE holds the entry of the Secret, 64 hexadecimal
digits. KEY is base64 of a nonce (12 bytes), the ciphertext (32) and the tag (16) of
AES-256-GCM, with standalone-cinder.openstack.org/encryption 1 ORIGIN as additional data.
The passphrase is the volume's key in hexadecimal digits. Needs python3-cryptography.
"""
import base64
import sys

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

version, _, origin, key = sys.argv[1].split(" ")
if version != "1":
    sys.exit("the record is of a later release")
with open(sys.argv[2]) as file:
    wrapping = AESGCM(bytes.fromhex(file.read().strip()))
wrapped = base64.b64decode(key, validate=True)
purpose = "standalone-cinder.openstack.org/encryption 1 " + origin
print(wrapping.decrypt(wrapped[:12], wrapped[12:], purpose.encode()).hex(), end="")
