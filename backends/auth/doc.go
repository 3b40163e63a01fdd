// Package auth reads the credentials of backends: clouds.yaml and the files
// next to it, the INI form of the historic provisioner, environment variables,
// and the addresses of a Cinder without authentication.
package auth
