// SPDX-License-Identifier: GPL-2.0
/*
 * Show QEMU's `edu` functions as the cards of NVIDIA's driver, as far as a container runtime and an inventory see it: the name
 * of the PCI driver, the device numbers, and /proc/driver/nvidia. Opening a device works and does nothing.
 * The parameters are in the order in which the cards are found, by PCI address.
 */
#include <linux/bitmap.h>
#include <linux/fs.h>
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/proc_fs.h>
#include <linux/seq_file.h>

#define CARDS 32
#define MAJOR_NVIDIA 195 /* LANANA's list */

static char *uuids[CARDS], *model = "", *version = "";
static int minors[CARDS], uuid_count, minor_count;
module_param_array(uuids, charp, &uuid_count, 0444);
module_param_array(minors, int, &minor_count, 0444);
module_param(model, charp, 0444);
module_param(version, charp, 0444);

static DECLARE_BITMAP(bound, CARDS);
static struct proc_dir_entry *driver_dir, *gpus_dir, *caps_dir;
static int uvm_major, caps_major;

struct card {
	unsigned int index;
	struct pci_dev *pdev;
	struct proc_dir_entry *dir;
};

static int open_any(struct inode *inode, struct file *file)
{
	return 0;
}

static const struct file_operations device_ops = { .owner = THIS_MODULE, .open = open_any };

static int show_information(struct seq_file *out, void *unused)
{
	struct card *card = out->private;

	seq_printf(out, "Model: \t\t %s\nIRQ:   \t\t %u\n", model, card->pdev->irq);
	seq_printf(out, "GPU UUID: \t %s\n", uuids[card->index]);
	seq_printf(out, "Bus Type: \t PCIe\nBus Location: \t %s\n", pci_name(card->pdev));
	seq_printf(out, "Device Minor: \t %d\nGPU Firmware: \t %s\nGPU Excluded:\t No\n", minors[card->index], version);
	return 0;
}

static int show_version(struct seq_file *out, void *unused)
{
	seq_printf(out, "NVRM version: NVIDIA UNIX x86_64 Kernel Module  %s  Tue Oct  8 03:22:07 UTC 2024\n", version);
	return 0;
}

static int show_nothing(struct seq_file *out, void *unused)
{
	return 0;
}

static int probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	struct card *card = devm_kzalloc(&pdev->dev, sizeof(*card), GFP_KERNEL);

	if (!card)
		return -ENOMEM;
	card->index = find_first_zero_bit(bound, CARDS);
	if (card->index >= uuid_count || card->index >= minor_count)
		return -ENODEV; /* The parameters name fewer cards. */
	card->pdev = pdev;
	card->dir = proc_mkdir(pci_name(pdev), gpus_dir);
	proc_create_single_data("information", 0444, card->dir, show_information, card);
	set_bit(card->index, bound);
	pci_set_drvdata(pdev, card);
	return 0;
}

static void unbind(struct pci_dev *pdev)
{
	struct card *card = pci_get_drvdata(pdev);

	proc_remove(card->dir);
	clear_bit(card->index, bound);
}

static const struct pci_device_id ids[] = { { PCI_DEVICE(0x1234, 0x11e8) }, {} }; /* QEMU's edu */
MODULE_DEVICE_TABLE(pci, ids);

static struct pci_driver card_driver = { .name = "nvidia", .id_table = ids, .probe = probe, .remove = unbind };

static int __init start(void)
{
	int error = register_chrdev(MAJOR_NVIDIA, "nvidia", &device_ops);

	if (error)
		return error;
	uvm_major = register_chrdev(0, "nvidia-uvm", &device_ops);
	caps_major = register_chrdev(0, "nvidia-caps", &device_ops);
	driver_dir = proc_mkdir("driver/nvidia", NULL);
	gpus_dir = proc_mkdir("gpus", driver_dir);
	caps_dir = proc_mkdir("driver/nvidia-caps", NULL);
	proc_create_single("version", 0444, driver_dir, show_version);
	proc_create_single("mig-minors", 0444, caps_dir, show_nothing);
	return pci_register_driver(&card_driver);
}

static void __exit end(void)
{
	pci_unregister_driver(&card_driver);
	proc_remove(caps_dir);
	proc_remove(driver_dir);
	unregister_chrdev(caps_major, "nvidia-caps");
	unregister_chrdev(uvm_major, "nvidia-uvm");
	unregister_chrdev(MAJOR_NVIDIA, "nvidia");
}

module_init(start);
module_exit(end);
MODULE_DESCRIPTION("Cards of a node in QEMU");
MODULE_LICENSE("GPL");
