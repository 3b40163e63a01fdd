package rig

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
)

// Target is an iSCSI target that tgtd exports at this moment.
type Target struct {
	// IQN is the target's name; Cinder puts the volume's id into it.
	IQN string
	// Accounts are the CHAP user names that may log in.
	Accounts []string
	// Initiators are the names of the initiators that are logged in.
	Initiators []string
	// Disks are the files behind the target's units, by unit number. The
	// controller that tgtd adds to every target as unit 0 is not among them.
	Disks map[int]string
}

// Targets lists what the rig's iSCSI target exports, in tgtd's order.
func (e Env) Targets(ctx context.Context) ([]Target, error) {
	var complaint bytes.Buffer
	command := exec.CommandContext(ctx, e.targetAdmin, "--show")
	command.Stderr = &complaint
	output, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("list iSCSI targets: %w: %s", err, bytes.TrimSpace(complaint.Bytes()))
	}
	return parseTargets(output)
}

// parseTargets reads the output of "tgtadm --op show --mode target": an indented
// outline of which only some lines matter.
func parseTargets(output []byte) ([]Target, error) {
	var (
		targets []Target
		section string
		unit    int
		disk    bool
	)
	lines := bufio.NewScanner(bytes.NewReader(output))
	for number := 1; lines.Scan(); number++ {
		line := strings.TrimRight(lines.Text(), " ")
		text := strings.TrimSpace(line)
		depth := len(line) - len(strings.TrimLeft(line, " "))
		if depth == 0 && text != "" {
			_, iqn, found := strings.Cut(text, ": ")
			if !found || !strings.HasPrefix(text, "Target ") {
				return nil, fmt.Errorf("list iSCSI targets: line %d of tgtadm's answer is not a target: %q", number, text)
			}
			targets = append(targets, Target{IQN: iqn, Disks: map[int]string{}})
			section = ""
			continue
		}
		if len(targets) == 0 {
			continue
		}
		target := &targets[len(targets)-1]
		key, value, _ := strings.Cut(text, ": ")
		switch {
		case depth == 4:
			section = strings.TrimSuffix(text, ":")
		case section == "Account information" && text != "":
			target.Accounts = append(target.Accounts, text)
		case section == "I_T nexus information" && key == "Initiator":
			name, _, _ := strings.Cut(value, " ")
			target.Initiators = append(target.Initiators, name)
		case section == "LUN information" && key == "LUN":
			parsed, err := strconv.Atoi(value)
			if err != nil {
				return nil, fmt.Errorf("list iSCSI targets: line %d of tgtadm's answer: %w", number, err)
			}
			unit = parsed
		case section == "LUN information" && key == "Type":
			disk = value == "disk"
		case section == "LUN information" && key == "Backing store path" && disk:
			target.Disks[unit] = value
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("list iSCSI targets: %w", err)
	}
	return targets, nil
}
