// The module of its own keeps gophercloud/utils, which module registries do
// not always serve, out of the product's go.mod.
module github.com/standalone-cinder/standalone-cinder/test/cloudsoracle

go 1.26.0

require (
	github.com/gophercloud/utils/v2 v2.0.0-20260424064311-2eeed4ceb3e9
	gopkg.in/yaml.v3 v3.0.1
)

require (
	github.com/gofrs/uuid/v5 v5.4.0 // indirect
	github.com/gophercloud/gophercloud/v2 v2.15.0 // indirect
	golang.org/x/sys v0.47.0 // indirect
	golang.org/x/text v0.28.0 // indirect
)
