# shellcheck shell=bash
# What is started, in which order, under which configuration.

readonly SERVICES=(mariadb epmd rabbitmq tgtd keystone barbican
  cinder-scheduler cinder-volume cinder-backup cinder-api-noauth cinder-api-keystone
  ceph-mon ceph-mgr ceph-osd)
readonly DATABASE_NAMES=(keystone barbican cinder)

random_word() {
  od -An -N16 -tx1 /dev/urandom | tr -d ' \n'
}

# Passwords are made once and live as long as the data.
make_secrets() {
  local name
  if [[ -e $STATE/secrets ]]; then
    return
  fi
  (
    umask 077
    for name in DATABASE AMQP ADMIN CINDER TEAM_A TEAM_B; do
      printf '%s_PASSWORD=%s\n' "$name" "$(random_word)"
    done >"$STATE/secrets"
    printf 'FIXED_KEY=%s%s\n' "$(random_word)" "$(random_word)" >>"$STATE/secrets"
    printf 'BARBICAN_KEY=%s\n' "$(head -c 32 /dev/urandom | base64)" >>"$STATE/secrets"
  )
}

# render TEMPLATE FILE: replaces @NAME@ by the variable of that name. Not sed:
# the passwords would be seen in its arguments.
render() {
  local text name
  text=$(<"$RIG/templates/$1")
  for name in STATE DEBUG AMQP_PORT KEYSTONE_PORT NOAUTH_PORT CINDER_PORT ISCSI_PORT BARBICAN_PORT \
    CEPH_PORT CEPH_MSGR2_PORT CEPH_FSID \
    AMQP_PASSWORD DATABASE_PASSWORD CINDER_PASSWORD FIXED_KEY BARBICAN_KEY RBD_BACKEND; do
    text=${text//"@$name@"/"${!name}"}
  done
  printf '%s\n' "$text" >"$2"
}

prepare_files() {
  local name
  mkdir -p "$STATE"/{etc/no-policy.d,bin,run,log,tmp,driver} \
    "$STATE"/data/{exports,volumes,backups,rabbitmq,keystone,.barbican,cinder/locks,cinder/coordination}
  make_secrets
  # shellcheck disable=SC1091 # written a moment ago
  . "$STATE/secrets"
  RBD_BACKEND=
  [[ $RIG_CEPH != 1 ]] || RBD_BACKEND=,rbd,rbd-keyring
  for name in mariadb.cnf rabbitmq.conf keystone.conf keystone-uwsgi.ini cinder.conf \
    cinder-noauth.conf cinder-keystone.conf targets.conf barbican-uwsgi.ini; do
    render "$name" "$STATE/etc/$name"
  done
  # Its programs look in their home directory, and take no option.
  render barbican.conf "$STATE/data/.barbican/barbican.conf"
  if [[ $RIG_CEPH == 1 ]]; then
    render ceph.conf "$STATE/etc/ceph.conf"
    render cinder-rbd.conf "$STATE/etc/cinder-rbd.conf"
    cat "$STATE/etc/cinder-rbd.conf" >>"$STATE/etc/cinder.conf"
  fi
  : >"$STATE/etc/no-policy.yaml"
  : >"$STATE/etc/rabbitmq-env.conf"
  printf '[].\n' >"$STATE/etc/rabbitmq-plugins"
  for name in tgt-admin tgtadm cryptsetup qemu-img; do
    render "$name" "$STATE/bin/$name"
    chmod 0755 "$STATE/bin/$name"
  done
  rm -rf "$STATE/driver/standalone_cinder_rig"
  cp -R "$RIG/driver/standalone_cinder_rig" "$STATE/driver/"
}

# Message queue. The node has an address instead of a host name, so that
# nothing needs to resolve; its port mapper is our own and ends with the rest.
start_queue() {
  rm -rf "$STATE/data/rabbitmq"
  mkdir -p "$STATE/data/rabbitmq"
  launch epmd env ERL_EPMD_PORT="$EPMD_PORT" epmd -address 127.0.0.1 -port "$EPMD_PORT"
  wait_for epmd 10 port_open "$EPMD_PORT"
  # The packaged wrapper changes to the user rabbitmq and to its own
  # directories: call what it calls.
  launch rabbitmq env \
    HOME="$STATE/data/rabbitmq" \
    ERL_EPMD_ADDRESS=127.0.0.1 ERL_EPMD_PORT="$EPMD_PORT" \
    RABBITMQ_USE_LONGNAME=true RABBITMQ_NODENAME=rig@127.0.0.1 \
    RABBITMQ_DIST_PORT="$ERLANG_PORT" \
    RABBITMQ_CONF_ENV_FILE="$STATE/etc/rabbitmq-env.conf" \
    RABBITMQ_CONFIG_FILE="$STATE/etc/rabbitmq.conf" \
    RABBITMQ_ENABLED_PLUGINS_FILE="$STATE/etc/rabbitmq-plugins" \
    RABBITMQ_MNESIA_BASE="$STATE/data/rabbitmq/mnesia" \
    RABBITMQ_LOG_BASE="$STATE/log" \
    RABBITMQ_GENERATED_CONFIG_DIR="$STATE/data/rabbitmq/config" \
    RABBITMQ_PID_FILE="$STATE/run/rabbitmq-server.pid" \
    RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS='-kernel inet_dist_use_interface {127,0,0,1} +S 2:2' \
    /usr/lib/rabbitmq/bin/rabbitmq-server
}

initialise_database() {
  once mariadb-install mariadb-install-db --defaults-file="$STATE/etc/mariadb.cnf" \
    --auth-root-authentication-method=socket --auth-root-socket-user=root \
    --skip-test-db --force
}

sql() {
  mariadb --no-defaults --socket="$STATE/run/mariadb.sock" --user=root "$@"
}

start_database() {
  launch mariadb mariadbd --defaults-file="$STATE/etc/mariadb.cnf"
  wait_for mariadb 120 sql -e 'SELECT 1'
}

create_databases() {
  local name
  for name in "${DATABASE_NAMES[@]}"; do
    printf "CREATE DATABASE %s CHARACTER SET utf8mb3;\n" "$name"
    printf "GRANT ALL ON %s.* TO '%s'@'localhost' IDENTIFIED BY '%s';\n" \
      "$name" "$name" "$DATABASE_PASSWORD"
  done | sql
}

# Schemas, keys and the first user. They run at the same time, since they share
# nothing.
fill_databases() {
  local keystone barbican cinder
  (
    umask 077
    once keystone-setup keystone-manage --config-file "$STATE/etc/keystone.conf" db_sync
    local keys
    for keys in fernet_setup credential_setup; do
      once keystone-setup keystone-manage --config-file "$STATE/etc/keystone.conf" "$keys" \
        --keystone-user root --keystone-group root
    done
    OS_BOOTSTRAP_PASSWORD=$ADMIN_PASSWORD once keystone-setup \
      keystone-manage --config-file "$STATE/etc/keystone.conf" bootstrap \
      --bootstrap-username admin --bootstrap-project-name admin --bootstrap-role-name admin \
      --bootstrap-service-name keystone --bootstrap-region-id RegionOne \
      --bootstrap-public-url "http://127.0.0.1:$KEYSTONE_PORT/v3" \
      --bootstrap-internal-url "http://127.0.0.1:$KEYSTONE_PORT/v3" \
      --bootstrap-admin-url "http://127.0.0.1:$KEYSTONE_PORT/v3"
  ) &
  keystone=$!
  once cinder-setup cinder-manage "${CINDER_CONFIGURATION[@]}" db sync &
  cinder=$!
  once barbican-setup barbican-manage db upgrade &
  barbican=$!
  wait "$barbican" || die "Barbican's database could not be set up"
  wait "$keystone" || die 'Keystone could not be set up'
  wait "$cinder" || die "Cinder's database could not be set up"
}

# tgtd keeps its targets in memory only; the records of the volume service tell
# tgt-admin what to export again.
start_targets() {
  launch tgtd env TGT_IPC_SOCKET="$STATE/run/tgtd" tgtd -f \
    --iscsi "portal=127.0.0.1:$ISCSI_PORT,portal=127.0.0.2:$ISCSI_PORT"
  wait_for tgtd 10 "$STATE/bin/tgtadm" --op show --mode sys
  if compgen -G "$STATE/data/exports/*" >/dev/null; then
    once tgt-admin "$STATE/bin/tgt-admin" --execute
  fi
}

start_keystone() {
  launch keystone env OS_KEYSTONE_CONFIG_FILES="$STATE/etc/keystone.conf" \
    uwsgi --ini "$STATE/etc/keystone-uwsgi.ini"
}

# Secrets are made by the API itself, without a worker.
start_barbican() {
  launch barbican uwsgi --ini "$STATE/etc/barbican-uwsgi.ini"
}

start_cinder() {
  local mode
  launch cinder-scheduler cinder-scheduler "${CINDER_CONFIGURATION[@]}"
  launch cinder-volume cinder-volume "${CINDER_CONFIGURATION[@]}"
  launch cinder-backup cinder-backup "${CINDER_CONFIGURATION[@]}"
  for mode in noauth keystone; do
    launch "cinder-api-$mode" cinder-api "${CINDER_CONFIGURATION[@]}" \
      --config-file "$STATE/etc/cinder-$mode.conf"
  done
}

setup_cloud() {
  (
    set -a
    # shellcheck disable=SC1091
    . "$STATE/secrets"
    export STATE KEYSTONE_PORT NOAUTH_PORT CINDER_PORT ISCSI_PORT BARBICAN_PORT CEPH_PORT RIG_CEPH
    become "$RIG/setup_cloud.py" "$@"
  )
}
