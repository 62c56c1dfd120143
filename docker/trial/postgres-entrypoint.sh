#!/bin/sh
# What the official PostgreSQL image does at its start, as far as docker/compose.yaml needs it: for the image that
# `docker/try.sh --offline-bases` makes of Debian's packages.
set -eu
: "${POSTGRES_PASSWORD:?}" "${PGDATA:?}"

as_postgres() { setpriv --reuid postgres --regid postgres --init-groups "$@"; }

install --directory --owner postgres --group postgres --mode 0700 "$PGDATA" /run/postgresql
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    umask 077
    printf '%s\n' "$POSTGRES_PASSWORD" > /tmp/password
    chown postgres /tmp/password
    as_postgres initdb --encoding UTF8 --locale C.UTF-8 --username postgres --auth-local trust \
        --auth-host scram-sha-256 --pwfile /tmp/password
    rm /tmp/password
    echo "host all all all scram-sha-256" >> "$PGDATA/pg_hba.conf"
    # On the socket alone: the health check asks over TCP, and must not succeed before the scripts have run.
    as_postgres pg_ctl --wait --options "-c listen_addresses=''" start
    for script in /docker-entrypoint-initdb.d/*.sql; do
        psql --no-psqlrc --username postgres --set ON_ERROR_STOP=1 --file "$script"
    done
    as_postgres pg_ctl --wait --mode fast stop
fi
exec setpriv --reuid postgres --regid postgres --init-groups postgres -c "listen_addresses=*"
