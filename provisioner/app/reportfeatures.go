package app

import (
	"fmt"
	"time"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/standalone-cinder/standalone-cinder/provisioner"
	"github.com/standalone-cinder/standalone-cinder/provisioner/features/attach"
	"github.com/standalone-cinder/standalone-cinder/provisioner/features/audit"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/statusreport"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/parking"
)

// reportExpansions lists the claims whose volumes cannot grow now.
func (t *term) reportExpansions(selected provisioner.Selected) *statusreport.Waiting {
	return waitingOf(pendingClaims(t.expander.Parked(), selected), selected)
}

// pendingClaims describes the selected claims of a lot, which have volumes.
func pendingClaims(lot *parking.Lot[*corev1.PersistentVolumeClaim], selected provisioner.Selected) (pending []statusreport.Pending) {
	for _, one := range lot.List() {
		claim := one.Object
		if selected.Includes(claim.Namespace, claim.Name) {
			entry := statusreport.NewPending(string(one.State), one.Reason, one.Message, one.Since, claim.CreationTimestamp.Time)
			entry.Namespace, entry.Name, entry.PersistentVolume, entry.StorageClass = claim.Namespace, claim.Name, claim.Spec.VolumeName, objects.ClassName(claim)
			pending = append(pending, entry)
		}
	}
	return pending
}

// reportSnapshots lists the VolumeSnapshots, VolumeGroupSnapshots and their contents that
// cannot continue now, and claims whose scheduled snapshots are late. Of the former it lists none for one
// claim, since some do not name theirs.
func (t *term) reportSnapshots(selected provisioner.Selected) *statusreport.Waiting {
	var pending []statusreport.Pending
	for _, one := range t.snapshots.Parked().List() {
		entry := statusreport.NewPending(string(one.State), one.Reason, one.Message, one.Since, one.Object.GetCreationTimestamp().Time)
		entry.Namespace, entry.Name = one.Object.GetNamespace(), one.Object.GetName()
		if _, ok := one.Object.(*groupv1.VolumeGroupSnapshot); ok {
			entry.Kind = objects.GroupKind
		}
		if content, ok := one.Object.(*snapshotv1.VolumeSnapshotContent); ok {
			entry.Namespace, entry.Name, entry.Content = content.Spec.VolumeSnapshotRef.Namespace, content.Spec.VolumeSnapshotRef.Name, content.Name
		}
		if content, ok := one.Object.(*groupv1.VolumeGroupSnapshotContent); ok {
			entry.Namespace, entry.Name, entry.Content, entry.Kind = content.Spec.VolumeGroupSnapshotRef.Namespace, content.Spec.VolumeGroupSnapshotRef.Name, content.Name, objects.GroupKind
		}
		if selected.Claim == "" && selected.Includes(entry.Namespace, "") {
			pending = append(pending, entry)
		}
	}
	return waitingOf(append(pending, pendingClaims(t.schedules.Parked(), selected)...), selected)
}

// attachingTakes is how long a volume may be attached or detached before it counts as
// waiting.
const attachingTakes = time.Minute

// reportAttachments lists the volumes that wait to be attached or detached; nil without
// the CSI driver.
func (t *term) reportAttachments(selected provisioner.Selected) *statusreport.Attachments {
	if t.sidecars == nil {
		return nil
	}
	found, known := attach.Report(t.sidecars.engine)
	if !known {
		return nil
	}
	claimOf := func(pv *corev1.PersistentVolume) corev1.ObjectReference {
		if pv == nil {
			return corev1.ObjectReference{}
		}
		return ptr.Deref(pv.Spec.ClaimRef, corev1.ObjectReference{})
	}
	report := &statusreport.Attachments{}
	for _, pv := range found.Attached {
		if claim := claimOf(pv); selected.Includes(claim.Namespace, claim.Name) {
			report.Attached++
		}
	}
	var pending []statusreport.Pending
	for _, one := range found.Waiting {
		claim := claimOf(one.Volume)
		if !selected.Includes(claim.Namespace, claim.Name) {
			continue
		}
		if one.Failure == "" && !one.StillStaged && time.Since(one.Since) < attachingTakes {
			report.InProgress++
			continue
		}
		state, reason, message := parking.Waiting, "Attaching", one.Failure
		if one.Detaching {
			reason = "Detaching"
		}
		if one.Failure != "" {
			state = parking.Failing
		}
		if one.StillStaged {
			state, reason, message = parking.Blocked, statusreport.StillStaged, stillStaged(one)
		}
		entry := statusreport.NewPending(string(state), reason, message, one.Since, one.Since)
		entry.Backend, entry.Node = one.Backend, one.Node
		entry.Namespace, entry.Name = claim.Namespace, claim.Name
		if pv := one.Volume; pv != nil {
			entry.PersistentVolume, entry.StorageClass = pv.Name, pv.Spec.StorageClassName
		}
		pending = append(pending, entry)
	}
	report.Waiting = *waitingOf(pending, selected)
	return report
}

func stillStaged(one attach.Waiting) string {
	return fmt.Sprintf("node %s may still write to the volume, although Kubernetes has detached it; until it lets go, the node gets no other volume of backend %s", one.Node, one.Backend)
}

func waitingOf(pending []statusreport.Pending, selected provisioner.Selected) *statusreport.Waiting {
	waiting := statusreport.NewWaiting(pending, selected.Limit)
	return &waiting
}

// result returns the findings of the last audit; nil before the term's first one, and for
// those who ask about a part of the cluster: most findings belong to nobody.
func (u *auditor) result(selected provisioner.Selected) *statusreport.Audit {
	last := u.last.Load()
	if last == nil || selected.Namespace != "" || selected.Namespaces != nil {
		return nil
	}
	shown := min(len(last.findings), selected.Limit)
	result := &statusreport.Audit{Time: inSeconds(last.at), Total: len(last.findings), Findings: make([]statusreport.Finding, shown), NotShown: len(last.findings) - shown}
	for i, f := range last.findings[:shown] {
		result.Findings[i] = statusreport.Finding{Kind: string(f.Kind), Subject: audit.Subject(f), Backend: f.Backend, Message: f.Message}
	}
	return result
}
