package mappers

import (
	"errors"
	"net"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
)

// address is a host and a TCP port.
type address struct {
	host string
	port uint16
	// byName is set for a host that is not an IP address.
	byName bool
}

// String writes IPv6 in brackets and in canonical form, as the kernel writes it and
// kubelet expects it.
func (a address) String() string {
	return net.JoinHostPort(a.host, strconv.Itoa(int(a.port)))
}

// parsePortal reads "host:port". The error completes a sentence that begins with the
// field and its value.
func parsePortal(portal string) (address, error) {
	host, port, err := net.SplitHostPort(portal)
	if err != nil {
		literal, notLiteral := netip.ParseAddr(portal)
		switch {
		case notLiteral == nil && literal.Is6():
			return address{}, errors.New("is an IPv6 address without brackets")
		case !strings.Contains(portal, ":"), strings.HasPrefix(portal, "[") && strings.HasSuffix(portal, "]"):
			return address{}, errors.New("has no port")
		default:
			return address{}, errors.New("is not an address and a port")
		}
	}
	return newAddress(host, port, strings.HasPrefix(portal, "["))
}

// newAddress checks a host and a port. A bracketed host must be IPv6; any other must not,
// unless the caller separated host and port.
func newAddress(host, port string, bracketed bool) (address, error) {
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil || number == 0 || port[0] == '0' {
		if port == "" {
			return address{}, errors.New("has no port")
		}
		return address{}, errors.New("has no port between 1 and 65535")
	}
	literal, err := netip.ParseAddr(host)
	switch {
	case err == nil && literal.Zone() != "":
		return address{}, errors.New("is an address with a zone, which is valid on one host only")
	case err == nil && literal.IsUnspecified():
		return address{}, errors.New("is the unspecified address, which nodes cannot reach")
	case err == nil && literal.Is4() && !bracketed, err == nil && literal.Is6():
		return address{host: literal.String(), port: uint16(number)}, nil
	case bracketed:
		return address{}, errors.New("has something other than an IPv6 address in brackets")
	case len(host) <= 253 && hostName.MatchString(host) && !numeric.MatchString(host):
		return address{host: host, port: uint16(number), byName: true}, nil
	default:
		return address{}, errors.New("has neither an IP address nor a host name before its port")
	}
}

var (
	// hostName is a name of DNS labels (RFC 1123 section 2.1).
	hostName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?)*$`)
	// numeric matches names whose last label is a number: misspelled IPv4.
	numeric = regexp.MustCompile(`(^|\.)[0-9]+$`)
)
