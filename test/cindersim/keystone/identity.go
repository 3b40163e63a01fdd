package keystone

import (
	"cmp"
	"time"
)

// Identity is Keystone's content.
type Identity struct {
	Projects               []Project
	Users                  []User
	ApplicationCredentials []ApplicationCredential
	Trusts                 []Trust

	// TokenLifetime is the validity of a token; the default is one hour.
	TokenLifetime time.Duration
	// ValidationCache is how long Cinder continues to accept a token that
	// Keystone has revoked since Cinder last validated it (keystonemiddleware
	// caches). The default is 5 minutes; a negative value switches the cache
	// off. It never hides a token's expiry.
	ValidationCache time.Duration
	// Regions of the catalog; the default is "RegionOne" alone.
	Regions []string
	// Interfaces of every service; the default is public, internal and admin.
	Interfaces []string
	// ServiceTypes are the types under which Cinder is registered; the default
	// is volumev3 and block-storage. An empty, non-nil slice leaves Cinder out.
	ServiceTypes []string
	// KeyManager puts the key manager into the catalog.
	KeyManager bool
	// EndpointURL, if set, replaces the volume endpoint of the catalog. Its
	// argument is the simulator's own address.
	EndpointURL func(region, networkInterface, projectID, url string) string
}

// Project is a Keystone project.
type Project struct {
	// ID is made from the seed when empty.
	ID string
	// Name is unique within its domain.
	Name string
	// Domain is the domain's name; the default is "Default" (id "default").
	Domain string
	// Quota is Cinder's for this project: it replaces the general one, name by name.
	Quota map[string]int
}

// User is a Keystone user.
type User struct {
	ID, Name, Domain, Password string
	// Projects lists, by id or by name within the user's domain, where the user
	// has the roles reader and member.
	Projects []string
	// Admin adds the role admin in each of them.
	Admin bool
}

// ApplicationCredential lets a program act as a user in one project.
type ApplicationCredential struct {
	ID, Name, Secret string
	// User and Project are ids or names within the domain "Default".
	User, Project string
}

// Trust lets the trustee act as the trustor in one project.
type Trust struct {
	ID string
	// Trustor, Trustee and Project are ids or names within the domain "Default".
	Trustor, Trustee, Project string
}

// DefaultIdentity has the projects and users admin, team-a and team-b; each
// user's password is its name with "-pass" appended, and admin is one.
func DefaultIdentity() Identity {
	identity := Identity{}
	for _, name := range []string{"admin", "team-a", "team-b"} {
		identity.Projects = append(identity.Projects, Project{Name: name})
		identity.Users = append(identity.Users, User{
			Name: name, Password: name + "-pass", Projects: []string{name}, Admin: name == "admin",
		})
	}
	return identity
}

// withDefaults sets what is not given.
func (i Identity) withDefaults() Identity {
	if i.Projects == nil && i.Users == nil {
		defaults := DefaultIdentity()
		i.Projects, i.Users = defaults.Projects, defaults.Users
	}
	i.TokenLifetime = cmp.Or(i.TokenLifetime, time.Hour)
	i.ValidationCache = cmp.Or(i.ValidationCache, 5*time.Minute)
	if len(i.Regions) == 0 {
		i.Regions = []string{"RegionOne"}
	}
	if len(i.Interfaces) == 0 {
		i.Interfaces = []string{"public", "internal", "admin"}
	}
	if i.ServiceTypes == nil {
		i.ServiceTypes = []string{"volumev3", "block-storage"}
	}
	return i
}
