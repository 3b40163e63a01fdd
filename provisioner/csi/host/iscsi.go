package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// ISCSI is a node's iSCSI initiators, and their disks.
type ISCSI struct{ *SCSI }

// Target is an iSCSI target at one of its portals.
type Target struct {
	// Name is the target's name, and Portal is the host:port at which it is reached.
	Name, Portal string
}

// Login describes how the node logs in to a target.
type Login struct {
	// Interface is open-iscsi's name for the transport: default for TCP, iser for RDMA.
	Interface string
	// Initiator is the name that the node must use in the session.
	Initiator string
	// Replacement is how long a session may be lost before its commands fail; zero means
	// iscsid.conf's value.
	Replacement time.Duration
	// Credentials are the node's; the zero value means that the target requires none.
	Credentials Credentials
}

// Credentials are for CHAP. They print as a placeholder.
type Credentials struct{ User, Password string }

const redacted = "(credentials)"

// String hides the credentials.
func (Credentials) String() string { return redacted }

// GoString hides the credentials.
func (Credentials) GoString() string { return redacted }

// LogValue hides the credentials.
func (Credentials) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalJSON hides the credentials.
func (Credentials) MarshalJSON() ([]byte, error) { return json.Marshal(redacted) }

// Session is a session of the node's kernel.
type Session struct {
	ID, Host, TargetID int
	Target             Target
	Initiator, State   string
	// Interface is open-iscsi's name for the transport.
	Interface string
}

const loggedIn = "LOGGED_IN"

// Works reports whether the session is logged in.
func (s Session) Works() bool { return s.State == loggedIn }

// Disk returns the address at which the session has a LUN.
func (s Session) Disk(lun int) Address { return Address{s.Host, 0, s.TargetID, lun} }

var (
	// iSCSI names as defined by RFC 3721; they become arguments of iscsiadm.
	targetName = regexp.MustCompile(`^(?:iqn|eui|naa)\.[A-Za-z0-9][A-Za-z0-9.:_-]{0,220}$`)
	// initiatorLine is a line of initiatorname.iscsi with a value.
	initiatorLine = regexp.MustCompile(`^[^#]*InitiatorName[^=]*=(.*\S)`)
	hostName      = regexp.MustCompile(`^[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?$`)
	portNumber    = regexp.MustCompile(`^[0-9]{1,5}$`)
)

// highestLUN is the kernel's number of the last LUN that flat addressing can express.
const highestLUN = 1<<15 - 1

// CheckTarget refuses an invalid target.
func CheckTarget(t Target, lun int) error {
	host, port, ok := splitPortal(t.Portal)
	_, err := netip.ParseAddr(host)
	switch {
	case !targetName.MatchString(t.Name):
		return Refuse(Malformed, "%q is not the name of an iSCSI target", t.Name)
	case !ok || !portNumber.MatchString(port) || err != nil && !hostName.MatchString(host):
		return Refuse(Malformed, "%q is not the address of an iSCSI portal", t.Portal)
	case lun < 0 || lun > highestLUN:
		return Refuse(Malformed, "%d is not an iSCSI LUN", lun)
	}
	return nil
}

func splitPortal(portal string) (host, port string, ok bool) {
	i := strings.LastIndexByte(portal, ':')
	if i < 0 {
		return "", "", false
	}
	return strings.TrimSuffix(strings.TrimPrefix(portal[:i], "["), "]"), portal[i+1:], true
}

// samePortal compares addresses, which can be written in several ways.
func samePortal(a, b string) bool {
	hostA, portA, okA := splitPortal(a)
	hostB, portB, okB := splitPortal(b)
	if !okA || !okB || portA != portB {
		return a == b
	}
	ipA, errA := netip.ParseAddr(hostA)
	ipB, errB := netip.ParseAddr(hostB)
	if errA == nil && errB == nil {
		return ipA.Unmap() == ipB.Unmap()
	}
	return strings.EqualFold(hostA, hostB)
}

// InitiatorName returns the name with which the node's own sessions log in.
func (h *ISCSI) InitiatorName() (string, error) {
	const file = "/etc/iscsi/initiatorname.iscsi"
	content, err := h.root.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("the node's iSCSI name cannot be read; install open-iscsi: %w", err)
	}
	// Sessions have the name that open-iscsi reads: from the first line with a value,
	// whose rest belongs to the value, even apparent quotes or comments.
	for line := range strings.Lines(string(content)) {
		found := initiatorLine.FindStringSubmatch(line)
		if found == nil {
			continue
		}
		name := strings.TrimSpace(found[1])
		if !targetName.MatchString(name) {
			return "", fmt.Errorf("%s gives the node the name %q, which is no iSCSI name; open-iscsi takes the rest of the line for the name, so remove quotes and comments from the line", file, name)
		}
		return name, nil
	}
	return "", fmt.Errorf("%s has no line InitiatorName=iqn…", file)
}

// sessions lists all of the node's sessions, including those of other programs.
func (h *ISCSI) sessions() ([]Session, error) {
	names, err := list(h.root, "/sys/class/iscsi_session")
	if err != nil {
		return nil, err
	}
	hosts, err := h.sessionHosts()
	if err != nil {
		return nil, err
	}
	var found []Session
	for _, name := range names {
		id, err := strconv.Atoi(strings.TrimPrefix(name, "session"))
		if err != nil {
			continue
		}
		directory, connection := "/sys/class/iscsi_session/"+name+"/", fmt.Sprintf("/sys/class/iscsi_connection/connection%d:0/", id)
		host, known := hosts[name]
		session := Session{
			ID: id, Host: host, Initiator: h.attribute(directory + "initiatorname"), State: h.attribute(directory + "state"),
			Target: Target{Name: h.attribute(directory + "targetname")},
		}
		// Kernels without this attribute give software initiators target 0.
		session.TargetID, _ = strconv.Atoi(h.attribute(directory + "target_id"))
		address := strings.Trim(h.attribute(connection+"persistent_address"), "[]")
		session.Target.Portal = net.JoinHostPort(address, h.attribute(connection+"persistent_port"))
		session.Interface = h.attribute(directory + "ifacename")
		// A session that is starting or ending has no attributes.
		if session.Initiator != "" && known {
			found = append(found, session)
		}
	}
	return found, nil
}

// sessionHosts finds the SCSI host of each session.
func (h *ISCSI) sessionHosts() (map[string]int, error) {
	names, err := list(h.root, "/sys/class/iscsi_host")
	if err != nil {
		return nil, err
	}
	hosts := map[string]int{}
	for _, name := range names {
		number, err := strconv.Atoi(strings.TrimPrefix(name, "host"))
		if err != nil {
			continue
		}
		below, err := list(h.root, "/sys/class/iscsi_host/"+name+"/device")
		if err != nil {
			return nil, err
		}
		for _, entry := range below {
			if strings.HasPrefix(entry, "session") {
				hosts[entry] = number
			}
		}
	}
	return hosts, nil
}

// SessionsTo lists the initiator's sessions to a target at a portal. The sessions of the
// cluster's native volumes have another name, and are never touched.
func (h *ISCSI) SessionsTo(initiator string, t Target) ([]Session, error) {
	all, err := h.sessions()
	return slices.DeleteFunc(all, func(s Session) bool {
		return !strings.EqualFold(s.Initiator, initiator) || s.Target.Name != t.Name || !samePortal(s.Target.Portal, t.Portal)
	}), err
}

// refuseOthers refuses a target to which another program is logged in, at any portal. If
// that is kubelet, for native volumes, it treats the disks of all sessions to the target
// as its own: it would give the driver's disks to pods, or delete them.
func (h *ISCSI) refuseOthers(initiator string, t Target) error {
	all, err := h.sessions()
	for _, s := range all {
		if strings.EqualFold(s.Target.Name, t.Name) && !strings.EqualFold(s.Initiator, initiator) {
			return Refuse(ForeignPath, "the node is also logged in to target %s under the name %s (session %d), as for a native volume, whose disks and the driver's could not be told apart; keep native volumes of this storage on other nodes, or log out", t.Name, s.Initiator, s.ID)
		}
	}
	return err
}

const (
	codeSessionExists = 15
	codeNoRecords     = 21
	codeLoginRefused  = 24

	// recovery is how long a lost session may take to recover by itself.
	recovery = 5 * time.Second
	// loginLimit bounds a login: loginTries attempts of loginTimeout seconds each.
	loginLimit   = 90 * time.Second
	loginTimeout = 15
	loginTries   = 3
)

// LogIn returns a session to the target, and creates one if there is none. The caller
// must hold the target's lock.
func (h *ISCSI) LogIn(ctx context.Context, t Target, l Login) (Session, error) {
	if err := h.refuseOthers(l.Initiator, t); err != nil {
		return Session{}, err
	}
	session, found, err := h.usable(ctx, t, l.Initiator)
	if err != nil || found {
		return session, err
	}
	if err := h.record(ctx, t, l); err != nil {
		return Session{}, errors.Join(err, h.forgetTarget(ctx, t, l.Interface))
	}
	arguments := []string{"-m", "node", "-T", t.Name, "-p", t.Portal, "-I", l.Interface, "--login"}
	_, err = h.call(ctx, Command{Tool: "iscsiadm", Arguments: arguments, Limit: loginLimit})
	switch {
	case hasCode(err, codeSessionExists):
		err = nil
	case hasCode(err, codeLoginRefused):
		err = Refuse(LoginRefused, "target %s at %s refuses the login of %s; the credentials in the volume's Secret, or what the storage permits, may have changed", t.Name, t.Portal, l.Initiator)
	}
	if err == nil {
		session, err = h.loggedIn(ctx, t, l.Initiator)
	}
	if err != nil {
		return Session{}, errors.Join(err, h.LogOut(ctx, t, l.Interface, l.Initiator))
	}
	return session, nil
}

// usable finds a working session. A broken session that does not recover may have been
// created with outdated credentials, so it is ended if no disk needs it.
func (h *ISCSI) usable(ctx context.Context, t Target, initiator string) (Session, bool, error) {
	var session Session
	var exists bool
	works, err := until(ctx, recovery, func() (bool, error) {
		sessions, err := h.SessionsTo(initiator, t)
		exists = len(sessions) > 0
		if i := slices.IndexFunc(sessions, Session.Works); i >= 0 {
			session = sessions[i]
			return true, nil
		}
		return !exists, err
	})
	if err != nil || works {
		return session, exists, err
	}
	sessions, err := h.SessionsTo(initiator, t)
	if err != nil {
		return Session{}, false, err
	}
	for _, s := range sessions {
		ended, err := h.endIdle(ctx, s)
		if err != nil {
			return Session{}, false, err
		}
		if !ended {
			return Session{}, false, fmt.Errorf("the session to %s at %s is lost, and other disks need it", t.Name, t.Portal)
		}
	}
	return Session{}, false, nil
}

// record replaces open-iscsi's record of the target, so that nothing of an earlier record
// remains. A new record starts with iscsid.conf's values.
func (h *ISCSI) record(ctx context.Context, t Target, l Login) error {
	if err := h.forgetTarget(ctx, t, l.Interface); err != nil {
		return err
	}
	node := []string{"-m", "node", "-T", t.Name, "-p", t.Portal, "-I", l.Interface, "-o"}
	if _, err := h.run(ctx, "iscsiadm", append(slices.Clone(node), "new")...); err != nil {
		return err
	}
	settings := [][2]string{
		// The kernel must not find disks that were not requested.
		{"node.session.scan", "manual"},
		// A session must not return after a restart of the node, because the volume may
		// be elsewhere by then.
		{"node.startup", "manual"},
		{"node.session.initial_login_retry_max", strconv.Itoa(loginTries)},
		{"node.conn[0].timeo.login_timeout", strconv.Itoa(loginTimeout)},
	}
	if l.Replacement > 0 {
		settings = append(settings, [2]string{"node.session.timeo.replacement_timeout", strconv.Itoa(int(l.Replacement.Seconds()))})
	}
	secret, method := l.Credentials.Password, "CHAP"
	if secret == "" {
		method = "None"
	}
	settings = append(settings,
		[2]string{"node.session.auth.authmethod", method},
		// The credentials of iscsid.conf are for other storage: open-iscsi would send
		// them, or require this storage to know them, regardless of the method.
		[2]string{"node.session.auth.username", l.Credentials.User},
		[2]string{"node.session.auth.password", ""},
		[2]string{"node.session.auth.username_in", ""},
		[2]string{"node.session.auth.password_in", ""},
	)
	update := append(slices.Clone(node), "update", "-n")
	for _, setting := range settings {
		if _, err := h.run(ctx, "iscsiadm", append(slices.Clone(update), setting[0], "-v", setting[1])...); err != nil {
			return err
		}
	}
	if secret == "" {
		return nil
	}
	_, err := h.call(ctx, Command{Tool: "iscsiadm", Arguments: append(update, "node.session.auth.password", "-v"), Secret: secret})
	return err
}

// loggedIn waits for the session after a login.
func (h *ISCSI) loggedIn(ctx context.Context, t Target, initiator string) (Session, error) {
	var session Session
	err := await(ctx, patience, func() (bool, error) {
		sessions, err := h.SessionsTo(initiator, t)
		i := slices.IndexFunc(sessions, Session.Works)
		if err != nil || i < 0 {
			return false, err
		}
		session = sessions[i]
		return true, nil
	}, "the login of %s to %s at %s made no session under that name", initiator, t.Name, t.Portal)
	return session, err
}

// Known returns the credentials in open-iscsi's record of a target.
func (h *ISCSI) Known(ctx context.Context, t Target, iface string) (Credentials, error) {
	output, err := h.run(ctx, "iscsiadm", "-m", "node", "-T", t.Name, "-p", t.Portal, "-I", iface, "-o", "show", "-S")
	if err != nil {
		return Credentials{}, err
	}
	values := map[string]string{}
	for line := range strings.Lines(output) {
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " = ")
		values[name] = value
	}
	if values["node.session.auth.authmethod"] != "CHAP" {
		return Credentials{}, nil
	}
	return Credentials{values["node.session.auth.username"], values["node.session.auth.password"]}, nil
}

// LogOut ends the initiator's sessions to a target, and removes the record with its
// credentials, unless disks need them. The caller must hold the target's lock.
func (h *ISCSI) LogOut(ctx context.Context, t Target, iface, initiator string) error {
	sessions, err := h.SessionsTo(initiator, t)
	if err != nil {
		return err
	}
	needed := false
	for _, s := range sessions {
		ended, err := h.endIdle(ctx, s)
		if err != nil {
			return err
		}
		needed = needed || !ended
	}
	if needed {
		return nil
	}
	return h.forgetTarget(ctx, t, iface)
}

// endIdle ends a session that no disk needs. It looks for disks, because a use count
// could be wrong.
func (h *ISCSI) endIdle(ctx context.Context, s Session) (ended bool, err error) {
	disks, err := h.DisksOf(s.Host)
	if err != nil || len(disks) > 0 {
		return false, err
	}
	_, err = h.run(ctx, "iscsiadm", "-m", "session", "-r", strconv.Itoa(s.ID), "--logout")
	if err != nil && !hasCode(err, codeNoRecords) {
		return false, err
	}
	err = await(ctx, patience, func() (bool, error) {
		names, err := list(h.root, "/sys/class/iscsi_session")
		return err == nil && !slices.Contains(names, "session"+strconv.Itoa(s.ID)), err
	}, "session %d to %s still exists after %s", s.ID, s.Target.Name, patience)
	return err == nil, err
}

// forgetTarget removes open-iscsi's record of a target, with its credentials.
func (h *ISCSI) forgetTarget(ctx context.Context, t Target, iface string) error {
	_, err := h.run(ctx, "iscsiadm", "-m", "node", "-T", t.Name, "-p", t.Portal, "-I", iface, "-o", "delete")
	if hasCode(err, codeNoRecords) {
		return nil
	}
	return err
}

// SessionOf returns a disk's session, regardless of which program logged in.
func (h *ISCSI) SessionOf(a Address) (Session, bool, error) {
	all, err := h.sessions()
	i := slices.IndexFunc(all, func(s Session) bool { return s.Host == a.Host })
	if err != nil || i < 0 {
		return Session{}, false, err
	}
	return all[i], true, nil
}
