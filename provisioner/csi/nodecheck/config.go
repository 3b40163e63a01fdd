package nodecheck

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
)

const (
	multipathFile = "/etc/multipath.conf"
	lvmFile       = "/etc/lvm/lvm.conf"
	// devicesFile lists the disks that LVM may use.
	devicesFile = "/etc/lvm/devices/system.devices"
)

// setting is a line of multipath.conf.
type setting struct{ section, key, value string }

var multipathToken = regexp.MustCompile(`"(?:[^"]|"")*"?|[{}]|[!#].*|[^\s{}"!#\x00]+`)

// opens reports whether a word begins a section within another one.
func opens(within, word string) bool {
	switch word {
	case "defaults", "blacklist", "blacklist_exceptions", "devices", "device", "multipaths", "multipath", "overrides":
		return true
	}
	return word == "protocol" && within == "overrides"
}

// settingsOf reads the language of multipath.conf (libmultipath/parser.c), which has one
// setting, or the begin or end of a section, in a line, and ignores the line's rest.
func settingsOf(text string) (found []setting) {
	var sections []string
	for line := range strings.Lines(text) {
		var words []string
		for _, token := range multipathToken.FindAllString(line, -1) {
			if token[0] == '!' || token[0] == '#' {
				break
			}
			if inside, isQuoted := strings.CutPrefix(token, `"`); isQuoted {
				token = strings.ReplaceAll(strings.TrimSuffix(strings.TrimRight(inside, "\r\n"), `"`), `""`, `"`)
			}
			words = append(words, token)
		}
		within := strings.Join(sections, "/")
		switch {
		case len(words) == 0:
		case words[0] == "}":
			sections = sections[:max(0, len(sections)-1)]
		case opens(within, words[0]):
			sections = append(sections, words[0])
		case len(words) > 1 && words[0] != "{":
			found = append(found, setting{within, words[0], words[1]})
		}
	}
	return found
}

// blacklistSamples are what multipathd may know of a volume's disk.
func blacklistSamples() map[string][]string {
	return map[string][]string{"devnode": {"sdzz"}, "wwid": {"36001405a3b2c1d0e9f84756a1b2c3d4e"}, "protocol": {"scsi:iscsi", "scsi:fcp"}}
}

// multipathConf checks what docs/how-to/nodes.md asks of the configuration.
func (c *checker) multipathConf() {
	sample := `printf 'defaults {\n find_multipaths yes\n no_path_retry 12\n skip_kpartx yes\n}\noverrides {\n no_path_retry 12\n}\n' > ` + multipathFile + " && systemctl restart multipathd"
	content, err := c.root.ReadFile(multipathFile)
	if err != nil {
		c.warn("configuration", err.Error(), ifMissing(err, sample))
		return
	}
	all := settingsOf(string(content))
	const more = "/etc/multipath/conf.d"
	names, _ := c.root.ReadDir(more)
	for _, name := range names {
		if strings.HasSuffix(name, ".conf") {
			all = append(all, settingsOf(c.text(path.Join(more, name)))...)
		}
	}
	last := map[string]string{}
	for _, s := range all {
		last[s.section+" "+s.key] = s.value
	}
	set := func(section, line string) string {
		return fmt.Sprintf("set %s in the section %s of %s, then multipathd reconfigure", line, section, multipathFile)
	}
	for _, wanted := range []string{"find_multipaths", "skip_kpartx"} {
		if value := last["defaults "+wanted]; value == "yes" || value == "on" {
			c.ok(wanted, value)
		} else {
			c.warn(wanted, "set to "+orNothing(value)+" in the section defaults", set("defaults", wanted+" yes"))
		}
	}
	retry := last["overrides no_path_retry"]
	queues := slices.ContainsFunc(all, func(s setting) bool {
		// The values of one multipath override even those of the section overrides.
		applies := retry == "" || s.section == "overrides" || strings.HasPrefix(s.section, "multipaths/")
		return applies && (s.key == "no_path_retry" && s.value == "queue" || retry == "" && s.key == "features" && strings.Contains(s.value, "queue_if_no_path"))
	})
	switch {
	case queues:
		c.fail("no_path_retry", "queue: without paths, writes and unmounts block forever", set("overrides", "no_path_retry 12"))
	case retry == "":
		c.warn("no_path_retry", "not set in the section overrides, so many arrays' defaults queue forever", set("overrides", "no_path_retry 12"))
	default:
		c.ok("no_path_retry", retry)
	}
	if hides := blacklisted(all); hides != "" {
		c.fail("blacklist", "hides the disks of volumes: "+hides, "narrow the section blacklist of "+multipathFile+" to local disks, then multipathd reconfigure")
	} else {
		c.ok("blacklist", "hides no disks of volumes")
	}
}

func orNothing(value string) string {
	if value == "" {
		return "nothing"
	}
	return value
}

// blacklisted returns the line that hides volumes' disks.
func blacklisted(all []setting) string {
	for _, s := range all {
		for _, name := range blacklistSamples()[s.key] {
			excepted := func(e setting) bool {
				return e.section == "blacklist_exceptions" && e.key == s.key && matches(e.value, name)
			}
			if s.section == "blacklist" && matches(s.value, name) && !slices.ContainsFunc(all, excepted) {
				return s.key + " " + s.value
			}
		}
	}
	return ""
}

// matches understands the patterns of multipath.conf; ! inverts one, and * alone is all.
func matches(pattern, name string) bool {
	rest, inverted := strings.CutPrefix(pattern, "!")
	found, err := regexp.MatchString(rest, name)
	return rest == "*" || err == nil && found != inverted
}

var (
	// lvmString is a string of LVM's language, or a comment.
	lvmString     = regexp.MustCompile(`"(?:[^"\\]|\\.)*"|'[^']*'|#.*`)
	lvmFilter     = regexp.MustCompile(`\bglobal_filter\s*=\s*(\[(?:\s*(?:"(?:[^"\\]|\\.)*"|'[^']*')\s*,?)*\s*\]|"(?:[^"\\]|\\.)*"|'[^']*')`)
	quoted        = regexp.MustCompile(`"((?:[^"\\]|\\.)*)"|'([^']*)'`)
	usesFile      = regexp.MustCompile(`\buse_devicesfile\s*=\s*([01])`)
	usesByDefault = regexp.MustCompile(`(?m)^\s*#\s*use_devicesfile\s*=\s*1`)
)

// lvm checks that the node's LVM leaves volumes alone: what tenants wrote there would be
// activated on the node.
func (c *checker) lvm(chosen []string) {
	if !c.host.Has("lvm") {
		c.ok("LVM", "not installed")
		return
	}
	text := c.text(lvmFile) + "\n" + c.text("/etc/lvm/lvmlocal.conf")
	settings := lvmString.ReplaceAllStringFunc(text, func(found string) string {
		if found[0] == '#' {
			return ""
		}
		return found
	})
	// Without a setting, the compiled one counts, which the file's comment shows.
	uses := usesByDefault.MatchString(text)
	if set := usesFile.FindAllStringSubmatch(settings, -1); len(set) > 0 {
		uses = set[len(set)-1][1] == "1"
	}
	if uses && c.exists(devicesFile) {
		c.ok("LVM", "uses only the disks in "+devicesFile)
		return
	}
	var filter [][]string
	if lines := lvmFilter.FindAllStringSubmatch(settings, -1); len(lines) > 0 {
		filter = quoted.FindAllStringSubmatch(lines[len(lines)-1][1], -1)
	}
	samples := []string{"/dev/sdzz", "/dev/mapper/36001405a3b2c1d0e9f84756a1b2c3d4e", "/dev/mapper/mpathzz"}
	if slices.Contains(chosen, nvmeof) {
		samples = append(samples, "/dev/nvme99n1")
	}
	if slices.Contains(chosen, rbd) {
		samples = append(samples, "/dev/rbd99")
	}
	if i := slices.IndexFunc(samples, func(name string) bool { return accepted(filter, name) }); i >= 0 {
		c.warn("LVM", "scans disks such as "+samples[i]+", and activates what tenants wrote there",
			`set global_filter = ["a|^/dev/OWN-DISK|", "r|.*|"] in `+lvmFile+", or only r|.*| if the node's own disks have no LVM")
		return
	}
	c.ok("LVM", "its global_filter rejects volumes")
}

// accepted applies a filter of LVM: the first pattern that matches decides.
func accepted(filter [][]string, name string) bool {
	for _, found := range filter {
		pattern := strings.ReplaceAll(found[1], `\\`, `\`) + found[2]
		if len(pattern) < 3 {
			continue
		}
		if hit, err := regexp.MatchString(pattern[2:len(pattern)-1], name); err == nil && hit {
			return pattern[0] == 'a'
		}
	}
	return true
}
