// Package auth reads the credentials of backends: clouds.yaml and the files
// beside it, the INI form of the historic provisioner, environment variables, and
// the addresses of a Cinder that authenticates nobody.
package auth
