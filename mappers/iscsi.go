package mappers

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/standalone-cinder/standalone-cinder/mappers/mapping"
)

// Limits of Kubernetes' validation of iSCSI sources (pkg/apis/core/validation), which
// come from open-iscsi's interface names and from the peripheral LUN addressing that
// kubelet's device paths rely on.
const (
	maxLUN                 = 255
	maxInterfaceNameLength = 64
	maxTargetNameLength    = 223 // RFC 7143 section 4.2.7.1
)

// iscsi describes protocols iscsi and iser.
func iscsi() protocol {
	return protocol{
		about: mapping.Protocol{
			Native: true,
			Keys:   map[mapping.Form][]string{mapping.Native: {"interface", "omitInitiatorName"}},
			Facts:  []string{"portal", "iqn", "lun", "portals", "iqns", "luns"},
			Fields: []string{
				"target_portal", "target_iqn", "target_lun", "target_portals", "target_iqns", "target_luns", "target_discovered",
				"auth_method", "auth_username", "auth_password", "discovery_auth_method", "discovery_auth_username", "discovery_auth_password",
				"addressing_mode", "wwn",
			},
		},
		builtIn: mapISCSI,
		facts:   iscsiFacts,
	}
}

// mapISCSI maps protocols iscsi and iser to the native iscsi source.
func mapISCSI(r request) (Result, error) {
	if err := r.requireNativeAccessModes(); err != nil {
		return Result{}, err
	}
	paths, warnings, err := iscsiConnection{Connection: r.Connection}.paths()
	if err != nil {
		return Result{}, r.withHint(err)
	}
	result := Result{Warnings: warnings}

	// The paths that one source can express share the primary's target and LUN.
	primary := paths[0]
	var portals []string
	for _, path := range paths {
		if path.target != primary.target {
			continue
		}
		portals = append(portals, path.portal.String())
		if path.portal.byName {
			result.Warnings = append(result.Warnings, fmt.Sprintf(
				"portal %s is a host name: nodes find the device only if the target announces itself under that name",
				r.Connection.quote(path.portal.String())))
		}
	}
	if len(portals) < len(paths) {
		result.Warnings = append(result.Warnings, fmt.Sprintf(
			"only %d of %d paths can be used, those to %s: an iSCSI source of Kubernetes has one target name",
			len(portals), len(paths), r.Connection.quote(primary.target)))
	}

	source := &corev1.ISCSIPersistentVolumeSource{
		IQN:            primary.target,
		Lun:            primary.lun,
		ISCSIInterface: r.iscsiInterface(),
		FSType:         r.filesystem(),
		ReadOnly:       r.readOnly,
	}
	if portals, err = r.initiator(source, portals); err != nil {
		return Result{}, r.withHint(err)
	}
	if r.Connector.Initiator == "" {
		result.Warnings = append(result.Warnings, "the connector has no initiator: nodes log in under their own names, which the array may not admit, or to which it may expose the volume under a different LUN")
	}
	if user, err := r.Connection.text("auth_username"); err == nil && r.Connector.Initiator != "" && strings.HasPrefix(user, "iqn.") && user != r.Connector.Initiator {
		result.Warnings = append(result.Warnings, fmt.Sprintf(
			"auth_username is %s, as if the volume were connected for an initiator other than %s, under which nodes log in",
			r.Connection.quote(user), r.Connection.quote(r.Connector.Initiator)))
	}
	source.TargetPortal, source.Portals = portals[0], portals[1:]
	if len(source.Portals) == 0 {
		source.Portals = nil
	}

	if result.Secret, err = r.chapSecret(source); err != nil {
		return Result{}, err
	}
	result.Source.ISCSI = source
	return result, nil
}

// iscsiInterface returns the open-iscsi interface through which nodes log in. The default
// one speaks TCP, which an RDMA-only portal refuses.
func (r request) iscsiInterface() string {
	switch {
	case r.mapping.Interface != "":
		return r.mapping.Interface
	case r.protocol == "iser":
		return "iser"
	default:
		return "default"
	}
}

// withHint adds to a refusal caused by a limit of the native source that a driver may not
// have that limit.
func (r request) withHint(err error) error {
	var refusal *Refusal
	if errors.As(err, &refusal) && refusal.Reason == UnsupportedConnection {
		return refuse(refusal.Reason, "%s; or %s", refusal.Message, r.mappingHint())
	}
	return err
}

// initiator sets the source's initiator name, and returns the portals reordered so that
// the first stays within Kubernetes' limit for such sources: kubelet creates an interface
// named "<first portal>:<PersistentVolume>".
func (r request) initiator(source *corev1.ISCSIPersistentVolumeSource, portals []string) ([]string, error) {
	name := r.Connector.Initiator
	if name == "" {
		return portals, nil
	}
	if problem := mapping.InitiatorProblem(name); problem != "" {
		return nil, refuse(InvalidConnector, "the connector's initiator is %s, which %s; correct connector.initiator of the backend", r.Connection.quote(name), problem)
	}
	if r.mapping.OmitInitiatorName {
		// Nodes log in under this name anyway, because it is their own.
		return portals, nil
	}
	source.InitiatorName = &name

	longest := maxInterfaceNameLength - len(r.PVName) - len(":")
	index := slices.IndexFunc(portals, func(portal string) bool { return len(portal) <= longest })
	if index < 0 {
		return nil, refuse(UnsupportedConnection,
			"portal %s is %d characters long, but Kubernetes allows it %d next to the name of the PersistentVolume and an initiatorName; give the target a shorter address, or, if every node has the connector's initiator as its InitiatorName in /etc/iscsi/initiatorname.iscsi, set mapping.%s.omitInitiatorName of the backend",
			r.Connection.quote(portals[0]), len(portals[0]), max(longest, 0), r.protocol)
	}
	fitting := portals[index]
	return append([]string{fitting}, slices.Delete(slices.Clone(portals), index, index+1)...), nil
}

// chapSecret builds the Secret for the target's CHAP credentials and points the source to
// it. It returns nil when neither sessions nor discovery need any.
func (r request) chapSecret(source *corev1.ISCSIPersistentVolumeSource) (*Secret, error) {
	data := map[string][]byte{}
	var err error
	if source.SessionCHAPAuth, err = r.Connection.chap("", "node.session.auth.", data); err != nil {
		return nil, err
	}
	if source.DiscoveryCHAPAuth, err = r.Connection.chap("discovery_", "discovery.sendtargets.auth.", data); err != nil {
		return nil, err
	}
	if len(data) == 0 {
		return nil, nil
	}
	secret := r.newSecret("kubernetes.io/iscsi-chap", data)
	source.SecretRef = secret.reference()
	return secret, nil
}

// chap copies one pair of CHAP credentials and reports whether there is one. Cinder's
// "auth_method" uses open-iscsi's words, so "None" means none; drivers that read it back
// from stored text send it in lower case.
func (c Connection) chap(prefix, keyPrefix string, data map[string][]byte) (bool, error) {
	methodKey, usernameKey, passwordKey := prefix+"auth_method", prefix+"auth_username", prefix+"auth_password"
	method, err := c.text(methodKey)
	if err != nil {
		return false, err
	}
	username, err := c.text(usernameKey)
	if err != nil {
		return false, err
	}
	password, err := c.text(passwordKey)
	if err != nil {
		return false, err
	}
	switch {
	case strings.EqualFold(method, "none"):
		return false, nil
	case method == "" && username == "" && password == "":
		return false, nil
	case method == "":
		return false, refuse(InvalidConnection, "%s is missing beside a user name or password; this backend's driver failed to describe the credentials, so check the cinder-volume log", methodKey)
	case !strings.EqualFold(method, "CHAP"):
		return false, refuse(UnsupportedAuthentication, "%s is %s, but kubelet speaks CHAP only; set the backend to CHAP or to no authentication", methodKey, c.quote(method))
	}
	for _, credential := range []struct{ key, name, value string }{
		{usernameKey, "username", username},
		{passwordKey, "password", password},
	} {
		if credential.value == "" {
			return false, refuse(InvalidConnection, "%s is missing although %s is %s; check the cinder-volume log to see why the driver sends only part of the credentials", credential.key, methodKey, c.quote(method))
		}
		if hasControl(credential.value) {
			return false, refuse(InvalidConnection, "%s holds control characters, which open-iscsi cannot take; give the backend other credentials", credential.key)
		}
		data[keyPrefix+credential.name] = []byte(credential.value)
	}
	return true, nil
}

// iscsiFacts returns the paths for a driver chosen by the operator: the primary one, and
// all of them in parallel lists. lun is missing if the paths have different LUNs.
// Contradictions are refused for every driver.
func iscsiFacts(r request) (facts, *Refusal, error) {
	paths, _, err := iscsiConnection{r.Connection, true}.paths()
	if err != nil {
		return nil, nil, err
	}
	for _, prefix := range []string{"", "discovery_"} {
		var refusal *Refusal
		if _, err := r.Connection.chap(prefix, "", map[string][]byte{}); errors.As(err, &refusal) && refusal.Reason == InvalidConnection {
			return nil, nil, err
		}
	}
	var portals, targets, luns []any
	var lun any = lunFact(paths[0].lun)
	for _, path := range paths {
		portals = append(portals, path.portal.String())
		targets = append(targets, path.target)
		luns = append(luns, lunFact(path.lun))
		if path.lun != paths[0].lun {
			lun = nil
		}
	}
	return facts{"portal": portals[0], "iqn": targets[0], "lun": lun, "portals": portals, "iqns": targets, "luns": luns}, nil, nil
}

func lunFact(lun int32) json.Number { return json.Number(strconv.Itoa(int(lun))) }

// iscsiPath is one path to the volume.
type iscsiPath struct {
	portal address
	target string
	lun    int32
}

// Target names as the API server accepts them. Its pattern for iqn names is not anchored
// at the front and accepts characters that RFC 3722 forbids; this one is narrower,
// because kubelet builds file names and globs from them.
var (
	iqnPattern = regexp.MustCompile(`^iqn\.[0-9]{4}-[0-9]{2}\.[A-Za-z0-9.-]+:[A-Za-z0-9._:-]+$`)
	euiPattern = regexp.MustCompile(`^eui\.[0-9A-Fa-f]{16}$`)
	naaPattern = regexp.MustCompile(`^naa\.[0-9A-Fa-f]{32}$`)
	// plainTargetPattern matches what some drivers send instead and some initiators
	// accept. No name contains a comma: in discovery answers it separates the name from
	// the tag of its portal group.
	plainTargetPattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:-]*$`)
	// standardTargetPattern matches what RFC 7143 (section 4.2.7) allows and
	// Kubernetes does not.
	standardTargetPattern = regexp.MustCompile(`^(iqn\.[0-9]{4}-[0-9]{2}\.[A-Za-z0-9.-]+|naa\.[0-9A-Fa-f]{16})$`)
	portalGroupTag        = regexp.MustCompile(`,t,|,[0-9]+$`)
	typedTarget           = regexp.MustCompile(`^(iqn|eui|naa)\.`)
)

// targetNameProblem describes why a name cannot be that of an iSCSI node, completing a
// sentence. It is empty if it can.
func targetNameProblem(name string) string {
	switch {
	case len(name) > maxTargetNameLength:
		return fmt.Sprintf("is longer than %d characters", maxTargetNameLength)
	case iqnPattern.MatchString(name), euiPattern.MatchString(name), naaPattern.MatchString(name):
		return ""
	case strings.HasPrefix(name, "iqn."):
		return "is not of the form iqn.<year>-<month>.<reversed domain>:<name>"
	case strings.HasPrefix(name, "eui."):
		return "is not of the form eui.<16 hex digits>"
	case strings.HasPrefix(name, "naa."):
		return "is not of the form naa.<32 hex digits>, the only one that Kubernetes accepts"
	default:
		return "starts with none of iqn., eui. and naa., which Kubernetes requires"
	}
}

// target reads the name of a target.
func (c iscsiConnection) target(field, name string) (string, error) {
	if name == "" {
		return "", refuse(InvalidConnection, "%s is empty; check the cinder-volume log to see why the volume has no target", field)
	}
	switch problem := targetNameProblem(name); {
	case problem == "":
	case portalGroupTag.MatchString(name):
		return "", refuse(InvalidConnection, "%s is %s, which has the tag of a portal group after the target's name; a name has no tag, correct the backend's driver or its settings", field, c.quote(name))
	case typedTarget.MatchString(name) && !standardTargetPattern.MatchString(name):
		return "", refuse(InvalidConnection, "%s is %s, which %s; correct the backend's driver or its settings", field, c.quote(name), problem)
	case !plainTargetPattern.MatchString(name):
		return "", refuse(InvalidConnection, "%s is %s, which %s and is no plain name either; correct the backend's driver or its settings", field, c.quote(name), problem)
	case !c.unlimited:
		return "", refuse(UnsupportedConnection, "%s is %s, which %s; set a standard target name on the array, or use a backend with one", field, c.quote(name), problem)
	}
	return name, nil
}

// lun reads a logical unit number that Kubernetes accepts.
func (c iscsiConnection) lun(field string, value any) (int32, error) {
	lun, err := c.anyLUN(field, value)
	if err == nil && lun > maxLUN && !c.unlimited {
		err = c.largeLUN(field, value)
	}
	return lun, err
}

func (c Connection) largeLUN(field string, value any) *Refusal {
	return refuse(UnsupportedConnection, "%s is %s, but Kubernetes accepts LUNs from 0 to %d only; let the array assign a lower one, for example with fewer volumes per host entry", field, c.quote(value), maxLUN)
}

// anyLUN reads a logical unit number. Drivers send it as a number or as digits in a
// string. A boolean, a fraction or a missing value is never read as 0 or 1: another
// volume may be there.
func (c Connection) anyLUN(field string, value any) (int32, error) {
	digits, ok := numeral(value)
	switch {
	case !ok:
		return 0, c.wrongType(field, value, "a whole number")
	case negativeNumber.MatchString(digits):
		return 0, refuse(InvalidConnection, "%s is %s, and drivers use negative numbers for \"not found\"; check the cinder-volume log to see why the volume has no LUN", field, c.quote(value))
	case !wholeNumber.MatchString(digits):
		return 0, c.wrongType(field, value, "a whole number in decimal digits")
	}
	number, err := strconv.ParseInt(digits, 10, 32)
	if err != nil {
		return 0, c.largeLUN(field, value)
	}
	return int32(number), nil
}

var (
	wholeNumber    = regexp.MustCompile(`^(0|[1-9][0-9]*)$`)
	negativeNumber = regexp.MustCompile(`^-[0-9]`)
)
